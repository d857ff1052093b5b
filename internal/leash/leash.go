// Package leash makes child processes end when the process that started them ends, for whatever reason, including
// SIGKILL and the out-of-memory killer.
//
// The parent holds the write end of a pipe for each child and never writes; the child inherits the read end, and Env
// contains its number. When the parent is gone the kernel closes the write end, and the child's context ends as with
// SIGTERM. The child stops in an orderly way; if that takes longer than Grace, it ends all the same. A process that
// was started without Env is not affected.
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

// Env is the environment variable with the number of the file descriptor that a child watches.
const Env = "TIDEMARK_PARENT_FD"

// Grace bounds how long a child may take to stop when its parent is gone, since no process is left to kill it. It is
// shorter than the time for which the next `tidemark up` waits for the ports.
const Grace = 4 * time.Second

// ErrGone is the cause of a context of Watch that ended because the parent ended.
var ErrGone = errors.New("the process that started this one has ended")

// firstExtra is the descriptor of the first of exec.Cmd's ExtraFiles.
const firstExtra = 3

// Leash is the parent's side of the pipe to one child.
type Leash struct {
	child, held *os.File
}

// New adds a leash to a command that has not been started. The caller must call Started after the start, and Close
// when the child has ended; an earlier Close ends the child. Errors are those of the operating system.
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

// Started closes the parent's copy of the child's end; call it whether or not the start succeeded.
func (l *Leash) Started() { _ = l.child.Close() }

// Close closes the parent's end; a running child then ends.
func (l *Leash) Close() { _ = l.held.Close() }

// Watch returns a context that ends, with the cause ErrGone, when the parent is gone. hopeless is called if this
// process still runs after Grace. Without Env, Watch returns ctx. Child processes of this process do not inherit Env.
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
	if err := syscall.SetNonblock(int(fd), true); err != nil { // waiting occupies no thread
		return nil, fmt.Errorf("environment %s=%d: %w", Env, fd, err)
	}
	// Output may go to the parent: after its end, a broken pipe must not kill this process before its orderly stop. A
	// closed terminal is the parent's concern; code that registers for SIGHUP later still receives it.
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
