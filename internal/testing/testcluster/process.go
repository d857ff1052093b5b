package testcluster

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/leash"
)

// endTimeout is how long a process may take to end, after a signal or by itself.
const endTimeout = 30 * time.Second

// Process is one process of the product, started on its own as an operator starts it, without `up`.
type Process struct {
	t     testing.TB
	Name  string
	Args  []string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
}

// Spawn starts the product with args and appends its output to DIR/NAME.log. The process is killed at the end of the
// test if it still runs.
func Spawn(t testing.TB, dir, name string, args ...string) *Process {
	t.Helper()
	return SpawnCommand(t, dir, name, Binary(t), args...)
}

// SpawnCommand is Spawn for a command that executes the product, such as one that enters a network namespace first.
func SpawnCommand(t testing.TB, dir, name, command string, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, Name: name, Args: args, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(command, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, f, f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	held, err := leash.New(p.cmd) // as with Launch
	if err == nil {
		err = p.cmd.Start()
		held.Started()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // callers get the exit code from Wait
		held.Close()
		close(p.ended)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			log := p.Log()
			t.Logf("%s.log ends with:\n%s", name, log[max(0, len(log)-logTail):])
		}
		p.Kill()
	})
	return p
}

// Log returns the output so far of all processes of that name.
func (p *Process) Log() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Error(err)
	}
	return string(b)
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal; it does nothing after the process has ended.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill ends the process with SIGKILL.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.ended
}

// Stop ends the process with SIGTERM and returns its exit code.
func (p *Process) Stop() int {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	return p.Wait()
}

// Ended returns a channel that is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits until the process ends by itself and returns its exit code, -1 if a signal killed it.
func (p *Process) Wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(endTimeout):
		p.Signal(syscall.SIGQUIT) // the goroutine dump goes to its log
		select {
		case <-p.ended:
		case <-time.After(stackTime):
		}
		p.t.Fatalf("%s (%s) has not ended within %s", p.Name, strings.Join(p.Args, " "), endTimeout)
	}
	return p.cmd.ProcessState.ExitCode()
}
