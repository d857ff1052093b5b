package localcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// child is one process of a role.
type child struct {
	c      *Cluster
	id     string
	args   []string
	health string // URL that answers 200 when it is up
	late   bool   // stopped last
	pid    func(m *Manifest, pid int)
}

// makeChildren turns the plan into command lines.
func (c *Cluster) makeChildren() {
	m, dir := &c.manifest, c.cfg.Dir
	var managers []string
	for _, e := range m.Managers {
		managers = append(managers, "http://"+c.told(hostport(e.REST)))
	}
	servers := strings.Join(managers, ",")
	password := filepath.Join(dir, passwordFile)
	var nodes []string
	for _, e := range m.KV {
		nodes = append(nodes, e.ID+"="+e.Memcached+"="+hostport(e.Admin))
	}
	add := func(ch *child) {
		ch.c = c
		ch.args = append(ch.args, "--log-level", c.cfg.LogLevel)
		if c.cfg.LogFormat != "" {
			ch.args = append(ch.args, "--log-format", c.cfg.LogFormat)
		}
		c.children = append(c.children, ch)
	}
	for i, e := range m.KV {
		add(&child{id: e.ID, late: true, health: e.Admin + "/healthz", pid: func(m *Manifest, pid int) { m.KV[i].PID = pid }, args: []string{
			"kv", "--id", e.ID, "--data", filepath.Join(dir, e.ID), "--memcached", e.Memcached, "--admin", hostport(e.Admin),
			"--nodes", strings.Join(nodes, ","), "--buckets", fmt.Sprintf("%s:%s:%d", m.Bucket, m.BucketUUID, m.VBuckets),
			"--kv-user", m.KVUser, "--kv-password-file", password,
		}})
	}
	for i, e := range m.Managers {
		add(&child{id: e.ID, health: e.REST + "/readyz", pid: func(m *Manifest, pid int) { m.Managers[i].PID = pid }, args: []string{
			"manager", "--id", e.ID, "--data", filepath.Join(dir, e.ID), "--rest", hostport(e.REST), "--raft", e.Raft,
			"--bootstrap-expect", fmt.Sprint(len(m.Managers)), "--join", servers,
			"--rest-advertise", c.told(hostport(e.REST)), "--raft-advertise", c.told(e.Raft),
		}})
	}
	for i, e := range m.Projectors {
		add(&child{id: e.ID, health: e.Admin + "/healthz", pid: func(m *Manifest, pid int) { m.Projectors[i].PID = pid }, args: []string{
			"projector", "--id", e.ID, "--managers", servers, "--admin", hostport(e.Admin), "--advertise", c.cfg.Advertise, "--kv", m.KV[i].Memcached,
			"--kv-user", m.KVUser, "--kv-password-file", password,
		}})
	}
	for i, e := range m.Indexers {
		add(&child{id: e.ID, health: e.Admin + "/healthz", pid: func(m *Manifest, pid int) { m.Indexers[i].PID = pid }, args: []string{
			"indexer", "--id", e.ID, "--data", filepath.Join(dir, e.ID), "--managers", servers, "--admin", hostport(e.Admin), "--scan", e.Scan,
			"--maintenance", e.Data.Maintenance, "--backfill", e.Data.Backfill, "--catchup", e.Data.Catchup,
			"--advertise", c.cfg.Advertise,
		}})
	}
}

// run starts the process again and again until ctx ends, then ends it: SIGTERM, and SIGKILL after the grace.
func (ch *child) run(ctx context.Context) error {
	for {
		err := ch.once(ctx)
		if ctx.Err() != nil {
			return err
		}
		if ch.c.cfg.Died != nil {
			ch.c.cfg.Died(ch.id, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartDelay):
		}
	}
}

// once runs the process to its end. Its standard error goes to DIR/logs/<id>.log.
func (ch *child) once(ctx context.Context) error {
	logFile, err := openLog(ch.logPath())
	if err != nil {
		return err
	}
	defer logFile.Close()
	watched, held, err := os.Pipe() // the child reads until this process is gone
	if err != nil {
		return fmt.Errorf("pipe to %s: %w", ch.id, err)
	}
	defer held.Close()
	cmd := exec.Command(ch.c.cfg.Exe, ch.args...) //nolint:noctx // ended by SIGTERM below, not killed with a context
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.ExtraFiles = []*os.File{watched}
	cmd.Env = append(append(environment(), ch.c.cfg.Env...), ParentEnv+"=3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is this process's to handle
	err = cmd.Start()
	_ = watched.Close()
	if err != nil {
		return fmt.Errorf("starting %s: %w", ch.id, err)
	}
	if err := ch.c.started(ch.pid, cmd.Process.Pid); err != nil && ch.c.cfg.Died != nil {
		ch.c.cfg.Died(ch.id, err) // it runs, but the manifest could not be written: say so
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have gone already
	select {
	case err = <-ended:
	case <-time.After(stopGrace):
		_ = cmd.Process.Kill()
		err = errors.Join(fmt.Errorf("%s did not stop within %s and was killed", ch.id, stopGrace), <-ended)
	}
	return err
}

// environment is this process's without the configuration file, whose keys are those of `up` and no role's.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "TIDEMARK_CONFIG=") })
}

func (ch *child) logPath() string { return filepath.Join(ch.c.cfg.Dir, "logs", ch.id+".log") }

func openLog(path string) (*os.File, error) {
	if s, err := os.Stat(path); err == nil && s.Size() > maxLogBytes {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("turning over a log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return f, nil
}

// waitReady waits until every child answers, then writes cluster.json.
func (c *Cluster) waitReady(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, ReadyTimeout)
	defer cancel()
	client := &http.Client{Timeout: readyCallLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	var g errgroup.Group
	for _, ch := range c.children {
		g.Go(func() error { return ch.answers(limit, client) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := c.waitActive(limit, client); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready = true
	return c.publish()
}

// waitActive waits until the leader counts every projector and indexer as active: from then on DDL finds them.
func (c *Cluster) waitActive(ctx context.Context, client *http.Client) error {
	m := c.Manifest()
	last := errors.New("no manager was asked yet")
	for {
		for _, e := range m.Managers {
			active, err := countActive(ctx, client, e.REST)
			if err == nil && active == len(m.Projectors)+len(m.Indexers) {
				return nil
			}
			if err == nil {
				err = fmt.Errorf("%d of %d projectors and indexers are active", active, len(m.Projectors)+len(m.Indexers))
			}
			if ctx.Err() == nil {
				last = err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready after %s: %w; the logs are in %s", ReadyTimeout, last, filepath.Join(c.cfg.Dir, "logs"))
		case <-time.After(readyPoll):
		}
	}
}

// countActive asks a manager how many projectors and indexers are active, once the coordinator has come to its duties.
func countActive(ctx context.Context, client *http.Client, rest string) (n int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, rest+"/v1/status", nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var s struct {
		Coordinator string
		Projectors  []struct{ State string }
		Indexers    []struct{ State string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return 0, fmt.Errorf("%s/v1/status: %w", rest, err)
	}
	for _, component := range append(s.Projectors, s.Indexers...) {
		if s.Coordinator == "active" && component.State == "active" {
			n++
		}
	}
	return n, nil
}

func (ch *child) answers(ctx context.Context, client *http.Client) error {
	last := errors.New("it was not asked yet")
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, ch.health, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("%s answers %s", ch.health, resp.Status)
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %s: %w; its log is %s", ch.id, ReadyTimeout, last, ch.logPath())
		case <-time.After(readyPoll):
		}
	}
}
