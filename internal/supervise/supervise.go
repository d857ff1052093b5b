// Package supervise keeps a child process of this program running, for `tidemark up` and `tidemark node`.
//
// A child that ends, by itself or killed, or that cannot be started, is restarted after a second, and after growing
// delays (30 s at most) while it keeps ending soon. A child whose node was removed from the cluster is not restarted.
// An orderly stop sends SIGTERM, and SIGKILL after the grace. A child ends by itself when this process is gone, for
// whatever reason (package leash). At most one process of a child runs at a time.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tidemark/errcode"
	"tidemark/internal/leash"
)

// Times and limits.
const (
	restartDelay = time.Second
	mostDelay    = 30 * time.Second // between starts of a child that keeps ending soon
	shortLife    = 10 * time.Second
	hopelessEnds = 3               // after this many early ends the child is hopeless
	outputGrace  = 2 * time.Second // for the last output of a child that has ended
)

// Child is a supervised process. Its fields must be set before Run.
type Child struct {
	ID   string
	Path string // path of the program
	Args []string
	Env  []string // the complete environment
	// Open returns the writer for standard output and error of one run of the process; it is closed after that run.
	Open func() (io.WriteCloser, error)
	// LastWords, if set, returns the reason that the process gave for its end; empty if it gave none.
	LastWords func() string
	Grace     time.Duration // between SIGTERM and SIGKILL
	// Started is called with the process id of each run, before anything waits for it.
	Started func(pid int)
	// Died is called when the process has ended unexpectedly; it is restarted after the delay.
	Died func(err error, delay time.Duration)
	// Removed is called when it has ended because its node was removed from the cluster: it is not restarted.
	Removed func(err error)

	ends atomic.Int32 // how often it has ended by itself soon after its start
	gone atomic.Bool

	mu      sync.Mutex
	process *os.Process // non-nil while it runs
}

// Gone reports whether the child's node was removed from the cluster.
func (c *Child) Gone() bool { return c.gone.Load() }

// Ended reports whether the child has ended by itself soon after a start.
func (c *Child) Ended() bool { return c.ends.Load() > 0 }

// Hopeless reports whether that has happened at least hopelessEnds times.
func (c *Child) Hopeless() bool { return c.ends.Load() >= hopelessEnds }

// Signal sends a signal to the process if it runs.
func (c *Child) Signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process != nil {
		_ = c.process.Signal(s) // it may have ended already
	}
}

// Run restarts the process until ctx ends, then stops it: SIGTERM, and SIGKILL after the grace. The error is that of
// the last run, unless it ended as requested.
func (c *Child) Run(ctx context.Context) error {
	var delay time.Duration
	for {
		started := time.Now()
		err := c.once(ctx)
		if ctx.Err() != nil {
			return err
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == errcode.ExitRemoved {
			c.gone.Store(true)
			c.ends.Store(hopelessEnds)
			c.Removed(err)
			return nil
		}
		short := time.Since(started) <= shortLife
		// It was stopped (err is nil) or killed from outside; any other end, and a failed start, is its own.
		others := err == nil || errors.As(err, &exit) && !exit.Exited()
		if short && !others {
			c.ends.Add(1)
		}
		delay = pause(delay, short)
		c.Died(err, delay)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
}

// pause returns the delay before the next start, given the delay before the last one. A child that is killed early
// counts like one that ends by itself: if nothing has changed, whatever killed it, such as the out-of-memory killer,
// will do so again.
func pause(last time.Duration, short bool) time.Duration {
	if last == 0 || !short {
		return restartDelay
	}
	return min(2*last, mostDelay)
}

// once runs the process until it ends.
func (c *Child) once(ctx context.Context) error {
	out, err := c.Open()
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(c.Path, c.Args...) //nolint:noctx // ended by SIGTERM below, not killed with a context
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = slices.Clone(c.Env)
	cmd.WaitDelay = outputGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // this process handles Ctrl-C
	held, err := leash.New(cmd)                           // the child ends when this process is gone
	if err != nil {
		return err
	}
	defer held.Close()
	err = cmd.Start()
	held.Started()
	if err != nil {
		return fmt.Errorf("starting %s: %w", c.ID, err)
	}
	c.set(cmd.Process)
	defer c.set(nil)
	c.Started(cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if why := c.lastWords(); err != nil && why != "" {
			return fmt.Errorf("%s (%w)", why, err)
		}
		return err
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case err = <-ended:
	case <-time.After(c.Grace):
		_ = cmd.Process.Kill()
		err = errors.Join(fmt.Errorf("%s did not stop within %s and was killed", c.ID, c.Grace), <-ended)
	}
	return err
}

func (c *Child) set(p *os.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process = p
}

func (c *Child) lastWords() string {
	if c.LastWords == nil {
		return ""
	}
	return c.LastWords()
}

// Error returns the reason that a process gave when it ended by itself: the last line of its output, if that is an
// error.
func Error(output string) string {
	text := strings.TrimSpace(output)
	why, ok := strings.CutPrefix(text[strings.LastIndexByte(text, '\n')+1:], "tidemark: ")
	if !ok {
		return ""
	}
	return why
}

// Environment returns this process's environment without the configuration file, whose keys are those of the parent
// and of no role, without the parent's own listen addresses, and without credentials and certificates for client
// commands.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool {
		for _, p := range []string{"CONFIG=", "LISTEN=", "PORT=", "TLS_", "CERTS_DIR=", "USER=", "TOKEN", "PASSWORD"} {
			if strings.HasPrefix(e, "TIDEMARK_"+p) {
				return true
			}
		}
		return false
	})
}
