// Package leash lets child processes end with the process that started them, however that one ends: SIGKILL and the
// power of the out-of-memory killer included.
//
// The parent holds the write end of a pipe for each child and never writes; the child inherits the read end, and Env
// names its number. When the parent is gone the kernel closes the write end, and the child's context ends as it does
// with SIGTERM. It promises that a child stops in order, and that one that does not within Grace ends all the same.
// It never changes anything for a process that was started without Env.
package leash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// Env names, in a child's environment, the file descriptor that it watches.
const Env = "TIDEMARK_PARENT_FD"

// Grace is how long a child may take to stop in order when its parent is gone: nobody is left to kill it. It is shorter
// than the next `tidemark up` waits for the ports.
const Grace = 4 * time.Second

// ErrGone is the cause of a context of Watch that ended because the parent has.
var ErrGone = errors.New("the process that started this one has ended")

// firstExtra is the descriptor of the first of exec.Cmd's ExtraFiles.
const firstExtra = 3

// Leash is what a parent holds of one child.
type Leash struct {
	child, held *os.File
}

// New returns a command that has not been started a leash. Started must be called after its start, Close when it has
// ended; Close before that ends it. Errors: those of the operating system.
func New(cmd *exec.Cmd) (*Leash, error) {
	child, held, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to %s: %w", cmd.Path, err)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", Env, firstExtra+len(cmd.ExtraFiles)))
	cmd.ExtraFiles = append(cmd.ExtraFiles, child)
	return &Leash{child: child, held: held}, nil
}

// Started gives up the parent's copy of the child's end, whether or not the start succeeded.
func (l *Leash) Started() { _ = l.child.Close() }

// Close lets go: a child that runs ends.
func (l *Leash) Close() { _ = l.held.Close() }

// Watch returns a context that ends, with the cause ErrGone, when the parent has; hopeless is called when this process
// is still there after Grace. Without Env it is ctx itself. What this process starts itself does not inherit Env.
func Watch(ctx context.Context, hopeless func()) (context.Context, error) {
	text, ok := os.LookupEnv(Env)
	if !ok {
		return ctx, nil
	}
	fd, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("environment %s=%q: want a file descriptor", Env, text)
	}
	if err := os.Unsetenv(Env); err != nil {
		return nil, err
	}
	syscall.CloseOnExec(int(fd))
	if err := syscall.SetNonblock(int(fd), true); err != nil { // waiting takes no thread
		return nil, fmt.Errorf("environment %s=%d: %w", Env, fd, err)
	}
	// What is printed may go to the parent: its end is no reason to stop out of order. And a terminal that is closed is
	// the parent's concern: SIGHUP counts for who asks for it, from then on.
	signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
	return watch(ctx, os.NewFile(uintptr(fd), "pipe to the parent"), Grace, hopeless), nil
}

func watch(ctx context.Context, pipe io.Reader, grace time.Duration, hopeless func()) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, pipe) // ends when the parent does
		cancel(ErrGone)
		time.AfterFunc(grace, hopeless)
	}()
	return ctx
}
