package scale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/internal/testing/ports"
	"tidemark/manager"
)

// asManager is the environment variable that makes this test binary run as one manager: it holds the manager.Config
// as JSON.
const asManager = "TIDEMARK_SCALE_MANAGER"

type managerConfig struct {
	Name, Dir, REST, Raft string
	Join                  []string
	Log                   string
	Profile               string // file for a CPU profile of the whole run; "": none
}

func TestMain(m *testing.M) {
	if text := os.Getenv(asManager); text != "" {
		if err := runManager(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runManager(text string) error {
	var c managerConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return fmt.Errorf("%s: %w", asManager, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // the pipe is closed when the test ends, however it ends
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if c.Profile != "" {
		f, err := os.Create(c.Profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	m, err := manager.Open(manager.Config{Name: c.Name, Dir: c.Dir, REST: c.REST, Raft: c.Raft,
		BootstrapExpect: len(c.Join), Join: c.Join,
		Logger: hclog.New(&hclog.LoggerOptions{Name: c.Name, Level: hclog.LevelFromString(c.Log), Output: os.Stderr})})
	if err != nil {
		return err
	}
	return m.Run(ctx)
}

// process is a manager's process.
type process struct {
	name, url, config string
	cmd               *exec.Cmd
	input             io.Closer // held open until the process has to end
}

// startManagers starts n managers of one cluster, which end with the test.
func startManagers(t *testing.T, n int, level, profiles string) (all []*process) {
	t.Helper()
	addrs := ports.Addrs(t, 2*n)
	for i := range n {
		c := managerConfig{Name: "m" + strconv.Itoa(i+1), Dir: filepath.Join(t.TempDir(), "m"), REST: addrs[i],
			Raft: addrs[n+i], Join: addrs[:n], Log: level}
		if profiles != "" {
			c.Profile = filepath.Join(profiles, c.Name+".prof")
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		p := &process{name: c.Name, url: "http://" + c.REST, config: string(text)}
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.stop)
		all = append(all, p)
	}
	return all
}

// start starts the process, also again after it has ended. The process ends when its standard input does.
func (p *process) start() error {
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), asManager+"="+p.config)
	p.cmd.Stderr = os.Stderr
	var err error
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	return p.cmd.Start()
}

func (p *process) stop() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		end := time.AfterFunc(20*time.Second, p.kill)
		_ = p.cmd.Wait()
		end.Stop()
	}
}

func (p *process) kill() { _ = p.cmd.Process.Kill() }

// usage holds the resources that a process has used since its start.
type usage struct {
	at           time.Time
	cpu          time.Duration
	in, out      uint64 // bytes of its reads and writes: sockets, and the Raft log
	rss, rssMost uint64 // bytes
}

func (p *process) usage() (u usage, err error) {
	u.at = time.Now()
	dir := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return u, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return u, errors.New("/proc/pid/stat is short")
	}
	for _, ticks := range f[11:13] { // user and system time, in hundredths
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			return u, err
		}
		u.cpu += time.Duration(n) * 10 * time.Millisecond
	}
	for _, field := range []struct {
		file, name string
		to         *uint64
		unit       uint64
	}{{"io", "rchar:", &u.in, 1}, {"io", "wchar:", &u.out, 1}, {"status", "VmRSS:", &u.rss, 1024},
		{"status", "VmHWM:", &u.rssMost, 1024}} {
		text, err := os.ReadFile(dir + field.file)
		if err != nil {
			return u, err
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == field.name {
				n, err := strconv.ParseUint(f[1], 10, 64)
				if err != nil {
					return u, err
				}
				*field.to = n * field.unit
			}
		}
	}
	return u, nil
}

// metric returns a value of a manager's /metrics, false if it is missing.
func (p *process) metric(ctx context.Context, name string) (float64, bool) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/metrics", nil)
	if err != nil {
		return 0, false
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, false
	}
	defer answer.Body.Close()
	var text strings.Builder
	buf := make([]byte, 64<<10)
	for {
		n, err := answer.Body.Read(buf)
		text.Write(buf[:n])
		if err != nil {
			break
		}
	}
	for line := range strings.Lines(text.String()) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			v, err := strconv.ParseFloat(f[1], 64)
			return v, err == nil
		}
	}
	return 0, false
}
