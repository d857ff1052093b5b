package localcluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"tidemark/internal/rpc"
	"tidemark/internal/supervise"
)

// role is the role of a child.
type role int

const (
	roleKV role = iota
	roleManager
	roleProjector
	roleIndexer
)

// child is a process of a role.
type child struct {
	c      *Cluster
	id     string
	args   []string
	health string // URL that answers 200 when it is up
	late   bool   // stopped last
	role   role
	pid    func(m *Manifest, pid int)

	process *supervise.Child
}

// makeChildren builds the command lines of the plan.
func (c *Cluster) makeChildren() {
	m, dir := &c.manifest, c.cfg.Dir
	var managers []string
	for _, e := range m.Managers {
		scheme, addr, _ := strings.Cut(e.REST, "://")
		managers = append(managers, scheme+"://"+c.advertised(addr))
	}
	servers := strings.Join(managers, ",")
	password := filepath.Join(dir, passwordFile)
	var nodes []string
	for _, e := range m.KV {
		node := e.ID + "=" + e.Memcached + "=" + hostport(e.Admin)
		if e.MemcachedTLS != "" {
			node += "=" + e.MemcachedTLS
		}
		nodes = append(nodes, node)
	}
	add := func(ch *child) {
		ch.c = c
		ch.args = append(ch.args, "--log-level", c.cfg.LogLevel)
		if c.cfg.LogFormat != "" {
			ch.args = append(ch.args, "--log-format", c.cfg.LogFormat)
		}
		if ch.role != roleKV {
			ch.args = append(ch.args, c.tlsArgs(ch.id)...)
		}
		ch.makeProcess()
		c.children = append(c.children, ch)
	}
	for i, e := range m.KV {
		var more []string
		if e.MemcachedTLS != "" {
			more = append(c.tlsArgs(e.ID), "--memcached-tls", e.MemcachedTLS)
		}
		if c.cfg.Nasty != "" {
			more = append(more, "--nasty", c.cfg.Nasty)
		}
		add(&child{id: e.ID, role: roleKV, late: true, health: e.Admin + "/readyz",
			pid: func(m *Manifest, pid int) { m.KV[i].PID = pid }, args: append([]string{
				"kv", "--id", e.ID, "--data", filepath.Join(dir, e.ID), "--memcached", e.Memcached, "--admin", hostport(e.Admin),
				"--nodes", strings.Join(nodes, ","), "--buckets", fmt.Sprintf("%s:%s:%d:%d", m.Bucket, m.BucketUUID, m.VBuckets,
					m.KVReplicas),
				"--kv-user", m.KVUser, "--kv-password-file", password,
			}, more...)})
	}
	for i, e := range m.Managers {
		add(&child{id: e.ID, role: roleManager, health: e.REST + "/readyz",
			pid: func(m *Manifest, pid int) { m.Managers[i].PID = pid }, args: append([]string{
				"manager", "--id", e.ID, "--data", filepath.Join(dir, e.ID), "--rest", hostport(e.REST), "--raft", e.Raft,
				"--bootstrap-expect", fmt.Sprint(len(m.Managers)), "--join", servers,
				"--rest-advertise", c.advertised(hostport(e.REST)), "--raft-advertise", c.advertised(e.Raft),
			}, c.cfg.ManagerArgs...)})
	}
	for i, e := range m.Projectors {
		kv := c.kvArgs(&m.KV[i], e.ID)
		add(&child{id: e.ID, role: roleProjector, health: e.Admin + "/healthz",
			pid: func(m *Manifest, pid int) { m.Projectors[i].PID = pid }, args: append([]string{
				"projector", "--id", e.ID, "--managers", servers, "--admin", hostport(e.Admin), "--advertise", c.cfg.Advertise,
				"--kv-user", m.KVUser, "--kv-password-file", password, "--feed", cmp.Or(c.cfg.Feed, "native"), "--throttle",
				cmp.Or(c.cfg.Throttle, "all"),
			}, kv...)})
	}
	for i, e := range m.Indexers {
		var quota []string
		if c.cfg.MemoryQuota > 0 {
			quota = []string{"--memory-quota", fmt.Sprint(c.cfg.MemoryQuota)}
		}
		add(&child{id: e.ID, role: roleIndexer, health: e.Admin + "/healthz",
			pid: func(m *Manifest, pid int) { m.Indexers[i].PID = pid }, args: append([]string{
				"indexer", "--id", e.ID, "--data", filepath.Join(dir, e.ID), "--managers", servers, "--admin", hostport(e.Admin),
				"--scan", e.Scan,
				"--maintenance", e.Data.Maintenance, "--backfill", e.Data.Backfill, "--catchup", e.Data.Catchup,
				"--advertise", c.cfg.Advertise,
			}, quota...)})
	}
}

// kvArgs returns the arguments with which a projector finds its KV node.
func (c *Cluster) kvArgs(e *KVEntry, projector string) []string {
	args := []string{"--kv", e.Memcached}
	if e.MemcachedTLS != "" {
		args = []string{"--kv", e.MemcachedTLS, "--kv-tls-ca", c.files(projector).CA}
	}
	if c.cfg.KVREST {
		args[1] = e.Admin // a URL with its scheme
	}
	if c.cfg.KVAll {
		args = append(args, "--kv-all")
	}
	return args
}

// makeProcess configures the supervision of the child. Its standard error goes to DIR/logs/<id>.log.
func (ch *child) makeProcess() {
	c := ch.c
	ch.process = &supervise.Child{ID: ch.id, Path: c.cfg.Exe, Args: ch.args, Env: append(supervise.Environment(),
		c.cfg.Env...), Grace: stopGrace, LastWords: ch.lastWords,
		Open: func() (io.WriteCloser, error) { return openLog(ch.logPath()) },
		Started: func(pid int) {
			if err := c.started(ch.pid, pid); err != nil && c.cfg.Died != nil {
				c.cfg.Died(ch.id, err, 0) // it runs, but the manifest could not be written
			}
		},
		Died: func(err error, delay time.Duration) {
			if c.cfg.Died != nil {
				c.cfg.Died(ch.id, err, delay)
			}
		},
		Removed: func(err error) {
			if c.cfg.Removed != nil {
				c.cfg.Removed(ch.id, err)
			}
		}}
}

// lastWords returns the error with which the process ended by itself: the last line of its log, if that is an error.
func (ch *child) lastWords() string {
	f, err := os.Open(ch.logPath())
	if err != nil {
		return ""
	}
	defer f.Close()
	tail := make([]byte, 4<<10)
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	n, err := f.ReadAt(tail, max(size-int64(len(tail)), 0))
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return supervise.Error(string(tail[:n]))
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

// waitReady waits until every child answers. For children that the cluster can do without (it can serve) it waits
// only for patience, and less if they end again and again. Then it writes cluster.json, and returns the missing ones.
func (c *Cluster) waitReady(ctx context.Context) (missing map[string]error, err error) {
	limit, cancel := context.WithTimeout(ctx, ReadyTimeout)
	defer cancel()
	manifest := c.Manifest()
	conf, err := manifest.UserTLS()
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: readyCallLimit, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: conf}}
	waiting, stop := context.WithCancel(limit)
	answers := make(chan childAnswer, len(c.children))
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	seen := readiness{missing: map[string]error{}, up: map[role]int{}}
	for _, ch := range c.children {
		seen.missing[ch.id] = nil
		all.Go(func() { answers <- childAnswer{ch, ch.answers(waiting, client)} })
	}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	var enough time.Time // since when the cluster can serve
	for len(seen.missing) > 0 && waiting.Err() == nil {
		select {
		case a := <-answers:
			seen.take(a)
		case <-tick.C:
		}
		if enough.IsZero() && c.canServe(seen.up) {
			enough = time.Now()
		}
		if !enough.IsZero() && (time.Since(enough) > patience || c.hopeless(seen.missing)) {
			stop()
		}
	}
	stop()
	all.Wait()
	close(answers)
	for a := range answers {
		seen.take(a)
	}
	if !c.canServe(seen.up) {
		return nil, c.notReady(seen.missing)
	}
	return seen.missing, c.finish(limit, client, c.cfg.projectors()+seen.up[roleIndexer])
}

type childAnswer struct {
	child *child
	err   error
}

// readiness tracks which children have answered.
type readiness struct {
	missing map[string]error // by id: the reason, if known
	up      map[role]int
}

func (r *readiness) take(a childAnswer) {
	if r.missing[a.child.id] = a.err; a.err == nil {
		delete(r.missing, a.child.id)
		r.up[a.child.role]++
	}
}

// canServe reports whether enough children answer: a majority of the managers that were not removed, all KV nodes
// with their projectors, and an indexer.
func (c *Cluster) canServe(up map[role]int) bool {
	managers := c.cfg.Managers
	for _, ch := range c.children {
		if ch.role == roleManager && ch.process.Gone() {
			managers--
		}
	}
	return up[roleManager] > managers/2 && up[roleKV] == c.cfg.KV && up[roleProjector] == c.cfg.projectors() &&
		up[roleIndexer] > 0
}

// hopeless reports whether all missing children have ended again and again.
func (c *Cluster) hopeless(missing map[string]error) bool {
	for _, ch := range c.children {
		if _, ok := missing[ch.id]; ok && !ch.process.Hopeless() {
			return false
		}
	}
	return true
}

// notReady returns the errors of all children that do not answer, in the order of the plan.
func (c *Cluster) notReady(missing map[string]error) error {
	var all []error
	for _, ch := range c.children {
		if err := missing[ch.id]; err != nil {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// finish waits until the leader counts the components as active, and writes cluster.json.
func (c *Cluster) finish(ctx context.Context, client *http.Client, components int) error {
	if err := c.waitActive(ctx, client, components); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready = true
	return c.publish()
}

// waitActive waits until the leader counts that many projectors and indexers as active: from then on DDL finds them.
func (c *Cluster) waitActive(ctx context.Context, client *http.Client, want int) error {
	m := c.Manifest()
	last := errors.New("no manager was asked yet")
	for {
		for _, e := range m.Managers {
			active, err := countActive(ctx, client, e.REST)
			if err == nil && active >= want {
				return nil
			}
			if err == nil {
				err = fmt.Errorf("%d of %d projectors and indexers are active", active, want)
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

// countActive asks a manager how many projectors and indexers are active, 0 until the coordinator is active.
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
	if resp.StatusCode == http.StatusUnauthorized { // the cluster has users: this check has no credentials
		return math.MaxInt, nil
	}
	var s struct {
		Coordinator string
		Projectors  []struct{ State string }
		Indexers    []struct{ State string }
	}
	b, err := rpc.ReadAnswer(resp, rpc.MaxControlBody)
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
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
			problem := rpc.ReadProblem(resp) // with the reason, if it has one
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("%s answers %s %s", ch.health, resp.Status, problem.Detail)
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			if why := ch.lastWords(); why != "" && ch.process.Ended() { // its own error is more useful
				last = errors.New(why)
			}
			return fmt.Errorf("%s is not ready: %w; its log is %s", ch.id, last, ch.logPath())
		case <-time.After(readyPoll):
		}
	}
}
