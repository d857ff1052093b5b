package leash

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// roleEnv makes the test binary a parent or a child.
const roleEnv = "TIDEMARK_LEASH_ROLE"

const guard = 3 * time.Minute

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "parent":
		parent()
	case "child":
		child()
	default:
		os.Exit(m.Run())
	}
}

// parent starts a child and waits to be killed. The child prints to the parent's standard output.
func parent() {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=child")
	cmd.Stdout = os.Stdout
	l, err := New(cmd)
	if err == nil {
		err = cmd.Start()
		l.Started()
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("child", cmd.Process.Pid)
	_, _ = io.Copy(io.Discard, os.Stdin)
	l.Close()
	_ = cmd.Wait()
}

// child prints a line when its parent is gone.
func child() {
	ctx, err := Watch(context.Background(), func() {})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	_, inherits := os.LookupEnv(Env)
	fmt.Println("watching", inherits)
	<-ctx.Done()
	fmt.Println("gone", context.Cause(ctx))
}

// TestAChildEndsWithItsParent ends the parent with SIGKILL, or closes the leash.
func TestAChildEndsWithItsParent(t *testing.T) {
	for what, end := range map[string]func(p *os.Process, stdin io.Closer){
		"SIGKILL": func(p *os.Process, _ io.Closer) { _ = p.Signal(syscall.SIGKILL) },
		"Close":   func(_ *os.Process, stdin io.Closer) { _ = stdin.Close() },
	} {
		t.Run(what, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), roleEnv+"=parent")
			cmd.Stdout = w
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(cmd.Start(), w.Close()); err != nil {
				t.Fatal(err)
			}
			_ = r.SetReadDeadline(time.Now().Add(guard))
			lines := bufio.NewScanner(r)
			seen := map[string]bool{}
			for len(seen) < 2 && lines.Scan() {
				word, rest, _ := strings.Cut(lines.Text(), " ")
				if seen[word] = true; word == "error" || word == "watching" && rest != "false" || word == "gone" {
					t.Fatal(lines.Text())
				}
			}
			end(cmd.Process, stdin)
			if !lines.Scan() || lines.Text() != "gone "+ErrGone.Error() {
				t.Errorf("the child says %q, %v", lines.Text(), lines.Err())
			}
			if lines.Scan() { // both hold the pipe until they have ended
				t.Errorf("and then %q", lines.Text())
			}
			if err := lines.Err(); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // killed or not
		})
	}
}

func TestWatch(t *testing.T) {
	ctx, err := Watch(t.Context(), nil)
	if err != nil || ctx != t.Context() {
		t.Errorf("started by hand: %v %v", ctx, err)
	}
	t.Setenv(Env, "three")
	if _, err := Watch(t.Context(), nil); err == nil || !strings.Contains(err.Error(), `TIDEMARK_PARENT_FD="three"`) {
		t.Errorf("a descriptor that is none: %v", err)
	}
	t.Setenv(Env, "60000")
	if _, err := Watch(t.Context(), nil); !errors.Is(err, syscall.EBADF) {
		t.Errorf("a descriptor that is not open: %v", err)
	}
}

// TestUnresponsiveChildIsKilled checks that a child that continues after the grace is ended.
func TestUnresponsiveChildIsKilled(t *testing.T) {
	r, w := io.Pipe()
	hopeless := make(chan struct{})
	ctx := watch(t.Context(), r, time.Nanosecond, func() { close(hopeless) })
	if ctx.Err() != nil {
		t.Error("it has ended although the parent is there")
	}
	_ = w.Close()
	for _, c := range []<-chan struct{}{ctx.Done(), hopeless} {
		select {
		case <-c:
		case <-time.After(guard):
			t.Fatal("nothing happens")
		}
	}
}
