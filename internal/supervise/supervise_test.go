package supervise

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/errcode"
)

const (
	guard   = 3 * time.Minute
	modeEnv = "TIDEMARK_SUPERVISE_TEST"
)

// TestMain lets the test binary also act as the child.
func TestMain(m *testing.M) {
	switch mode := os.Getenv(modeEnv); mode {
	case "":
		os.Exit(m.Run())
	case "stubborn": // ignores SIGTERM
		ignore := make(chan os.Signal, 1)
		signal.Notify(ignore, syscall.SIGTERM)
		_, _ = os.Stdout.WriteString("runs\n")
		select {}
	case "waits":
		_, _ = os.Stdout.WriteString("runs\n")
		time.Sleep(2 * guard) // select {} would be a deadlock, which ends it
	default: // prints a reason, and ends with that code
		_, _ = os.Stderr.WriteString("first\ntidemark: it cannot be\n")
		code, _ := strconv.Atoi(mode)
		os.Exit(code)
	}
}

// output is a writer for a child, and notifies the waiting test.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	runs chan struct{}
	once sync.Once
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.text.Write(p)
	if strings.Contains(o.text.String(), "runs\n") {
		o.once.Do(func() { close(o.runs) })
	}
	return n, err
}

func (o *output) Close() error { return nil }

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

type death struct {
	err   error
	delay time.Duration
}

type fixture struct {
	*Child
	out     *output
	pids    chan int
	died    chan death
	removed chan error
}

func child(mode string) *fixture {
	f := &fixture{out: &output{runs: make(chan struct{})}, pids: make(chan int, 100), died: make(chan death, 100),
		removed: make(chan error, 1)}
	f.Child = &Child{ID: "c1", Path: os.Args[0], Env: append(os.Environ(), modeEnv+"="+mode), Grace: guard,
		Open:      func() (io.WriteCloser, error) { return f.out, nil },
		LastWords: func() string { return Error(f.out.String()) },
		Started:   func(pid int) { f.pids <- pid },
		Died:      func(err error, delay time.Duration) { f.died <- death{err, delay} },
		Removed:   func(err error) { f.removed <- err }}
	return f
}

func next[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(guard):
		t.Fatal("nothing happens")
		panic("unreachable")
	}
}

// TestEndedChildIsRestarted checks that a child is restarted, that its reason is reported, and that the delay grows
// if it ends at once again.
func TestEndedChildIsRestarted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c, done := child("3"), make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	first, second := next(t, c.died), next(t, c.died)
	if first.delay != restartDelay || second.delay != 2*restartDelay {
		t.Errorf("pauses of %s and %s", first.delay, second.delay)
	}
	if !strings.Contains(first.err.Error(), "it cannot be (exit status 3)") {
		t.Errorf("it ended with %v", first.err)
	}
	if !c.Ended() || c.Hopeless() || c.Gone() {
		t.Error("after two ends it counts as another thing than one that ends")
	}
	cancel()
	if err := next(t, done); err != nil {
		t.Error(err)
	}
}

// TestKilledChildIsRestarted checks that a child is restarted as a new process after a second, later if it is killed
// again, and stops on request.
func TestKilledChildIsRestarted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c, done := child("waits"), make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	pid := next(t, c.pids)
	c.Signal(syscall.SIGKILL)
	if d := next(t, c.died); d.delay != restartDelay || c.Ended() {
		t.Errorf("a killed one: %+v", d)
	}
	if again := next(t, c.pids); again == pid {
		t.Error("it is the same process")
	}
	c.Signal(syscall.SIGKILL)
	if d := next(t, c.died); d.delay != 2*restartDelay || c.Ended() {
		t.Errorf("one that is killed again: %+v", d)
	}
	next(t, c.pids)
	cancel()
	var exit *exec.ExitError
	if err := next(t, done); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("it was ended with %v", err)
	}
	c.Signal(syscall.SIGKILL) // there is no process
}

// TestPause checks that the pause grows up to its bound while the child ends soon, and starts again after it has
// lived longer.
func TestPause(t *testing.T) {
	var got []time.Duration
	for i := range 9 {
		last := time.Duration(0)
		if i > 0 {
			last = got[i-1]
		}
		got = append(got, pause(last, i != 7))
	}
	want := []time.Duration{1, 2, 4, 8, 16, 30, 30, 1, 2}
	for i := range want {
		if got[i] != want[i]*time.Second {
			t.Fatalf("pauses %v", got)
		}
	}
}

// TestUnresponsiveChildIsKilled checks that a child is killed after its grace, and that this is reported.
func TestUnresponsiveChildIsKilled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c, done := child("stubborn"), make(chan error, 1)
	c.Grace = 100 * time.Millisecond
	go func() { done <- c.Run(ctx) }()
	next(t, c.out.runs)
	cancel()
	if err := next(t, done); err == nil || !strings.Contains(err.Error(), "c1 did not stop within 100ms") {
		t.Errorf("it was ended with %v", err)
	}
}

// TestRemovedChildIsNotRestarted checks that a removed child is not restarted.
func TestRemovedChildIsNotRestarted(t *testing.T) {
	t.Parallel()
	c := child(strconv.Itoa(errcode.ExitRemoved))
	if err := c.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if err := next(t, c.removed); !strings.Contains(err.Error(), "it cannot be") || !c.Gone() || !c.Hopeless() {
		t.Errorf("removed: %v", err)
	}
	if len(c.pids) != 1 {
		t.Errorf("it was started %d times", len(c.pids))
	}
}

// TestMissingProgram checks that a missing program is also retried with growing delays.
func TestMissingProgram(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := child("3")
	c.Path = filepath.Join(t.TempDir(), "nothing")
	go func() { _ = c.Run(ctx) }()
	for _, delay := range []time.Duration{restartDelay, 2 * restartDelay} {
		if d := next(t, c.died); !strings.Contains(d.err.Error(), "starting c1") || d.delay != delay {
			t.Error(d)
		}
	}
}

func TestError(t *testing.T) {
	for output, want := range map[string]string{"": "", "a\ntidemark: b\n": "b", "tidemark: b": "b",
		"tidemark: b\nc": ""} {
		if got := Error(output); got != want {
			t.Errorf("%q: %q, want %q", output, got, want)
		}
	}
}

// TestEnvironment checks that children do not get what is for the parent or for client commands.
func TestEnvironment(t *testing.T) {
	for _, e := range []string{"CONFIG", "HEARTBEAT", "LISTEN", "PORT", "PORTION", "TLS_CA", "TOKEN", "CERTS_DIR"} {
		t.Setenv("TIDEMARK_"+e, "x")
	}
	env := Environment()
	for e, want := range map[string]bool{"CONFIG": false, "HEARTBEAT": true, "LISTEN": false, "PORT": false,
		"PORTION": true, "TLS_CA": false, "TOKEN": false, "CERTS_DIR": false} {
		if slices.Contains(env, "TIDEMARK_"+e+"=x") != want {
			t.Errorf("TIDEMARK_%s is given to children: %v", e, !want)
		}
	}
}
