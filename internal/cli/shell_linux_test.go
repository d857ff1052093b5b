package cli

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tidemark/errcode"
	"tidemark/internal/testing/testcluster"
	"tidemark/statecontext"
)

// terminal is a pseudo-terminal with a shell at its other end.
type terminal struct {
	t   *testing.T
	pty *os.File
	cmd *exec.Cmd

	mu   sync.Mutex
	text bytes.Buffer
	seen int
}

func openTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("this machine has no pseudo-terminals: ", err)
	}
	t.Cleanup(func() { pty.Close() })
	if err := unix.IoctlSetPointerInt(int(pty.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(pty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120}); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(pty.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	x := &terminal{t: t, pty: pty, cmd: exec.Command(testcluster.Binary(t), args...)}
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = other, other, other
	x.cmd.Env = append(os.Environ(), "TERM=xterm", "TIDEMARK_SERVER=127.0.0.1:1", "NO_COLOR=1")
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		piece := make([]byte, 4096)
		for {
			n, err := pty.Read(piece)
			x.mu.Lock()
			x.text.Write(piece[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return x
}

// expect waits for a text after the last one that was found.
func (x *terminal) expect(want string) {
	x.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(scriptsPause) {
		x.mu.Lock()
		rest := x.text.String()[x.seen:]
		if at := strings.Index(rest, want); at >= 0 {
			x.seen += at + len(want)
			x.mu.Unlock()
			return
		}
		x.mu.Unlock()
		if time.Now().After(deadline) {
			x.t.Fatalf("no %q in %q", want, rest)
		}
	}
}

func (x *terminal) write(text string) {
	x.t.Helper()
	if _, err := io.WriteString(x.pty, text); err != nil {
		x.t.Fatal(err)
	}
}

// TestShellOnATerminal checks that lines run, fail and are completed; that Ctrl-C discards a line, and ends a running
// command but not the shell; and that the next shell has the lines in its history.
func TestShellOnATerminal(t *testing.T) {
	t.Parallel()
	history := filepath.Join(t.TempDir(), "state", "history")
	x := openTerminal(t, "shell", "--history", history, "--timeout", "10m")
	x.expect("tidemark> ")
	x.write("vers\t--output json\r")
	x.expect(`"version"`)
	x.expect("tidemark> ")
	x.write("index lost\r")
	x.expect("did you mean list?")
	x.expect("tidemark> ")
	x.write("CREATE INDEX i ON\r")
	x.expect("-> ")
	x.write("\x03")
	x.expect("tidemark> ")
	x.write(" version\r") // not added to the history
	x.expect(" go1.")
	x.expect("tidemark> ")
	x.write("cluster status\r")
	x.expect("no answer yet")
	x.write("\x03")
	x.expect("interrupted")
	x.expect("tidemark> ")
	x.write("\x04")
	if err := x.cmd.Wait(); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(history)
	if want := "version --output json\nindex lost\nCREATE INDEX i ON\ncluster status\n"; err != nil || string(b) != want {
		t.Errorf("history %q, %v, want %q", b, err, want)
	}

	again := openTerminal(t, "shell", "--history", history)
	again.expect("tidemark> ")
	again.write("\x1b[A\x1b[A\x1b[A\r") // three lines up
	again.expect("did you mean list?")
	again.expect("tidemark> ")
	if err := again.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := again.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestConfirmation checks that destructive commands ask for confirmation on a terminal, and do nothing without a yes.
func TestConfirmation(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ args, question string }{
		{"index drop w/i", "drop index w/i? [y/N] "},
		{"index drop w/i w/j", "drop 2 indexes: w/i, w/j? [y/N] "},
		{"cluster remove m2", "remove m2 from the cluster permanently? [y/N] "},
		{"user remove alice", "remove user alice and the user's tokens? [y/N] "},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Parallel()
			x := openTerminal(t, strings.Fields(tc.args)...)
			x.expect(tc.question)
			x.write("y\x7fn\r")
			x.expect("nothing was changed")
			x.exits(errcode.ExitFailed)
		})
	}
}

// TestRestoreConfirmsBetweenCalls checks that a restore requests the plan, and asks the user for confirmation only when
// that call has ended: --timeout applies to each call, not to the user's answer.
func TestRestoreConfirmsBetweenCalls(t *testing.T) {
	t.Parallel()
	var data bytes.Buffer
	if err := statecontext.WriteBackup(&data, statecontext.New(), 1, "1"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "a.backup")
	if err := os.WriteFile(file, data.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{}, 16)
	manager := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"cas":`+map[string]string{"true": "7", "false": "8"}[r.FormValue("dry_run")]+`}`)
	}))
	manager.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			left <- struct{}{}
		}
	}
	manager.Start()
	t.Cleanup(manager.Close)
	x := openTerminal(t, "cluster", "restore", file, "--server", manager.URL, "--timeout", "24h")
	x.expect("0 are dropped? [y/N] ")
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Error("the call for the plan has not ended")
	}
	x.write("y\r")
	x.expect("the cluster is at cas 8")
	x.exits(0)
}

// TestPromptsAreInterrupted checks that Ctrl-C, Ctrl-D and signals end a command that waits for input, and that the
// terminal is restored.
func TestPromptsAreInterrupted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ args, question, end string }{
		{"index drop w/i", "[y/N] ", "interrupted; nothing was changed"},
		{"user add alice --role ddl", "new password of alice: ", "interrupted"},
		{"index list --user alice", "password of alice: ", "interrupted"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Parallel()
			for key, end := range map[string]string{"\x03": tc.end, "\x04": "tidemark: ", "": tc.end} {
				x := openTerminal(t, strings.Fields(tc.args)...)
				x.expect(tc.question)
				if key == "" {
					if err := x.cmd.Process.Signal(syscall.SIGINT); err != nil {
						t.Fatal(err)
					}
				}
				x.write("se" + key)
				if key == "\x04" {
					x.write("\x15\x04") // ends an empty line
				}
				x.expect(end)
				x.exits(errcode.ExitFailed)
				if mode, err := unix.IoctlGetTermios(int(x.pty.Fd()), unix.TCGETS); err != nil ||
					mode.Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) != unix.ECHO|unix.ICANON|unix.ISIG {
					t.Errorf("%q: the terminal's mode is %+v, %v", key, mode, err)
				}
			}
		})
	}

	x := openTerminal(t, "shell", "--history", "-")
	x.expect("tidemark> ")
	x.write("index drop w/i\r")
	x.expect("[y/N] ")
	x.write("\x03")
	x.expect("interrupted; nothing was changed")
	x.expect("tidemark> ")
	x.write("version\r")
	x.expect(" go1.")
	x.expect("tidemark> ")
	x.write("\x04")
	if err := x.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// exits waits for the end of the process and checks its exit code.
func (x *terminal) exits(code int) {
	x.t.Helper()
	_ = x.cmd.Wait() // the exit code is in the state
	if got := x.cmd.ProcessState.ExitCode(); got != code {
		x.t.Errorf("exit code %d, want %d", got, code)
	}
}
