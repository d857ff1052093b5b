// Package supervise keeps a child process of this program running: what `tidemark up` and `tidemark node` are made of.
//
// It promises that a child that ends, by itself or killed, or cannot be started, is started again, after a second, and
// later and later (30 s at most) while it does not live long; that one whose node was removed from the cluster is not;
// that an orderly stop ends it with SIGTERM, and with SIGKILL after its grace; and that it ends by itself when this
// process is gone, however that happened (package leash). It never starts a child twice at a time.
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
	mostDelay    = 30 * time.Second // between starts of a child that does not live long
	shortLife    = 10 * time.Second
	hopelessEnds = 3               // so often a child has ended that nobody waits for any more
	outputGrace  = 2 * time.Second // for what a child that has ended had written
)

// Child is one process that is kept running. Its fields are set before Run.
type Child struct {
	ID   string
	Path string // of the program
	Args []string
	Env  []string // of the process, whole
	// Open returns where standard output and error of one life of the process go; it is closed when that has ended.
	Open func() (io.WriteCloser, error)
	// LastWords, if set, returns why the process says that it has ended, empty when it says nothing.
	LastWords func() string
	Grace     time.Duration // after SIGTERM
	// Started is called with each life's process id, before anything waits for it.
	Started func(pid int)
	// Died is called when the process has ended without being asked to; it is started again after the delay.
	Died func(err error, delay time.Duration)
	// Removed is called when it has ended because its node was removed from the cluster: it is not started again.
	Removed func(err error)

	ends atomic.Int32 // how often it has ended by itself soon after its start
	gone atomic.Bool

	mu      sync.Mutex
	process *os.Process // while it runs
}

// Gone reports whether the child's node was removed from the cluster.
func (c *Child) Gone() bool { return c.gone.Load() }

// Ended reports whether the child has ended by itself soon after a start.
func (c *Child) Ended() bool { return c.ends.Load() > 0 }

// Hopeless reports whether it has done so again and again.
func (c *Child) Hopeless() bool { return c.ends.Load() >= hopelessEnds }

// Signal sends a signal to the process, if it runs.
func (c *Child) Signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process != nil {
		_ = c.process.Signal(s) // it may have gone already
	}
}

// Run starts the process again and again until ctx ends, then ends it: SIGTERM, and SIGKILL after the grace. The error
// is that of the last life, when it did not end as it was asked to.
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
		// It was stopped or killed by somebody; all else is its own, a start that fails, too.
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

// pause returns how long a child waits for its next start, after the pause before its last one. Who kills it, a machine
// short of memory as well, does so again where nothing has changed: it counts as one that ends by itself.
func pause(last time.Duration, short bool) time.Duration {
	if last == 0 || !short {
		return restartDelay
	}
	return min(2*last, mostDelay)
}

// once runs the process to its end.
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
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is this process's to handle
	held, err := leash.New(cmd)                           // it ends when this process is gone
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
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have gone already
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

// Error returns what a process said when it ended by itself: the last line of its output when that is its error.
func Error(output string) string {
	text := strings.TrimSpace(output)
	why, ok := strings.CutPrefix(text[strings.LastIndexByte(text, '\n')+1:], "tidemark: ")
	if !ok {
		return ""
	}
	return why
}

// Environment is this process's without the configuration file, whose keys are those of the parent and no role's,
// without where the parent itself listens, and without what is for client commands: credentials and certificates.
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
