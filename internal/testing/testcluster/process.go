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

// endTimeout is how long a process that was told to end, or that is to end by itself, may take.
const endTimeout = 30 * time.Second

// Process is one process of the product on its own, as an operator starts it, without `up`.
type Process struct {
	t     testing.TB
	Name  string
	Args  []string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
}

// Spawn starts the product with args; what it prints is appended to DIR/NAME.log. It is killed at the end of the test
// unless it has ended.
func Spawn(t testing.TB, dir, name string, args ...string) *Process {
	t.Helper()
	return SpawnCommand(t, dir, name, Binary(t), args...)
}

// SpawnCommand is Spawn for a command that becomes the product, as one that enters a network namespace first.
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
		_ = p.cmd.Wait() // its exit code is asked for by Wait
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

// Log returns what processes of that name have printed so far.
func (p *Process) Log() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Error(err)
	}
	return string(b)
}

// PID returns its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal; one that has ended takes none.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill ends it with SIGKILL.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.ended
}

// Stop ends it with SIGTERM and gives its exit code.
func (p *Process) Stop() int {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	return p.Wait()
}

// Ended is closed when it has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits until it ends by itself and gives its exit code, -1 when it was killed.
func (p *Process) Wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(endTimeout):
		p.Signal(syscall.SIGQUIT) // its log shows what it does
		select {
		case <-p.ended:
		case <-time.After(stackTime):
		}
		p.t.Fatalf("%s (%s) has not ended within %s", p.Name, strings.Join(p.Args, " "), endTimeout)
	}
	return p.cmd.ProcessState.ExitCode()
}
