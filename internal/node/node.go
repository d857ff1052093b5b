// Package node runs the roles of one machine as supervised children of one process: the command `tidemark node`.
//
// A role that ends is restarted with growing pauses, and named in the log and in readiness until it runs again. An
// orderly stop stops all roles, each within its own limit. No role outlives this process (each watches a pipe to it),
// and whole lines of all roles go to one log. A role that was removed from the cluster does not keep the others from
// running. The package does not depend on what the roles do.
package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"tidemark/internal/filelock"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/supervise"
	"tidemark/internal/tlsconf"
)

// Times and limits.
const (
	// StopGrace is how long a role may take to stop: an indexer itself gives up on a hanging disk after 15 s.
	StopGrace  = 20 * time.Second
	drainGrace = time.Second
	askTimeout = time.Second            // for a role's readiness
	askEvery   = 250 * time.Millisecond // minimum interval
	maxLine    = 64 << 10               // bytes of a log line; a longer one is split
	keptOutput = 4 << 10                // bytes of a role's last output, for the reason of its end
)

// Reasons of readiness that only this command has.
const (
	reasonDown    = "role_down"    // a role does not run, or does not answer
	reasonRemoved = "role_removed" // a role was removed from the cluster
)

// ErrRemoved is returned by Run if all roles were removed from the cluster.
var ErrRemoved = errors.New("every role of this node was removed from the cluster")

// Role is one role to run.
type Role struct {
	Name  tlsconf.Role
	Args  []string // of the program
	Admin string   // host:port of its readiness, reachable from this machine
}

// Config configures a node.
type Config struct {
	ID       string
	Exe      string // path of the program
	Dir      string // data folder, locked
	Listen   string // host:port of the node's readiness
	Insecure bool
	Roles    []Role
	TLS      *tlsconf.Source // for Listen, and for requests to the roles; nil without TLS
	Out      io.Writer       // output of the roles: whole lines, from several goroutines
	Logger   hclog.Logger
}

// Node is a listening node.
type Node struct {
	cfg      Config
	log      hclog.Logger
	lock     *filelock.Lock
	listener net.Listener
	children []*child

	asking  sync.Mutex
	asked   time.Time
	reasons []rpc.Reason
}

// child is a supervised role.
type child struct {
	role   Role
	proc   *supervise.Child
	client *http.Client

	mu   sync.Mutex
	down string // why it does not run; empty while it does
}

// Open locks the data folder and listens; no role runs before Run. The error wraps filelock.ErrHeld when another
// process has the folder.
func Open(cfg Config) (*Node, error) {
	if err := cfg.TLS.MayListen(cfg.Insecure, tlsconf.Address{Flag: "listen", HostPort: cfg.Listen}); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	lock, err := filelock.Acquire(filepath.Join(cfg.Dir, "LOCK"))
	switch {
	case errors.Is(err, filelock.ErrHeld):
		return nil, fmt.Errorf("the data folder is %w: %s has a running `tidemark node`; stop that one or name another "+
			"folder with --data", err, cfg.Dir)
	case err != nil:
		return nil, fmt.Errorf("data folder: %w", err)
	}
	n := &Node{cfg: cfg, log: cfg.Logger, lock: lock}
	if n.listener, err = net.Listen("tcp", cfg.Listen); err != nil {
		lock.Release()
		return nil, fmt.Errorf("address of readiness: %w", err)
	}
	for _, r := range cfg.Roles {
		n.children = append(n.children, n.child(r))
	}
	return n, nil
}

func (n *Node) child(r Role) *child {
	c := &child{role: r, down: "it has not started yet", client: &http.Client{Timeout: askTimeout,
		Transport: &http.Transport{TLSClientConfig: n.cfg.TLS.Client(tlsconf.HTTP, r.Name), DisableKeepAlives: true}}}
	log := n.log.With("role", string(r.Name))
	var last tail
	c.proc = &supervise.Child{ID: string(r.Name), Path: n.cfg.Exe, Args: r.Args, Env: supervise.Environment(),
		Grace: StopGrace, LastWords: func() string { return supervise.Error(last.String()) },
		Open: func() (io.WriteCloser, error) {
			last.reset()
			return &lines{to: n.cfg.Out, tail: &last}, nil
		},
		Started: func(pid int) {
			c.set("")
			log.Debug("role started", "pid", pid)
		},
		Died: func(err error, delay time.Duration) {
			why := "it ended"
			if err != nil {
				why = err.Error()
			}
			c.set(fmt.Sprintf("%s; restarting it in %s", why, delay))
			log.Warn("role ended and is being restarted", "error", why, "in", delay.String())
		},
		Removed: func(err error) {
			c.set(err.Error())
			log.Error("role was removed from the cluster and is not restarted; the others continue", "error", err)
		}}
	return c
}

func (c *child) set(down string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

// Run runs the roles until ctx ends, then stops all. It returns earlier only if no role is left to run, or the node's
// own port fails.
func (n *Node) Run(ctx context.Context) error {
	defer n.lock.Release()
	run, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() {
		server := &route.Server{Handler: n.table().Handler(), TLS: n.cfg.TLS, Log: n.log, Grace: drainGrace}
		served <- server.Serve(run, n.listener)
		stop()
	}()
	var roles errgroup.Group
	for _, c := range n.children {
		roles.Go(func() error {
			if err := c.proc.Run(run); err != nil && !c.proc.Gone() {
				n.log.Warn("role did not stop cleanly", "role", string(c.role.Name), "error", err)
			}
			return nil
		})
	}
	_ = roles.Wait() // the log has each role's error
	n.log.Info("all roles have ended")
	all := ctx.Err() == nil && run.Err() == nil
	stop()
	if err := <-served; err != nil {
		return err
	}
	if all {
		return ErrRemoved
	}
	return nil
}

// Reload makes every role reload its certificates.
func (n *Node) Reload() {
	for _, c := range n.children {
		c.proc.Signal(syscall.SIGHUP)
	}
}

// table returns the routes of the node's port.
func (n *Node) table() *route.Table {
	return &route.Table{Lacks: "tidemark node has no call %s of its own", Routes: []route.Route{route.Alive(),
		route.Ready(n.ready)}}
}

// ready asks all roles concurrently. A request shortly after another one gets the same answer.
func (n *Node) ready() []rpc.Reason {
	n.asking.Lock()
	defer n.asking.Unlock()
	if now := time.Now(); n.asked.IsZero() || now.Sub(n.asked) >= askEvery || now.Before(n.asked) {
		all := make([][]rpc.Reason, len(n.children))
		var g sync.WaitGroup
		for i, c := range n.children {
			g.Go(func() { all[i] = c.reasons(context.Background(), n.cfg.TLS.Scheme()) }) // the answer is shared
		}
		g.Wait()
		n.reasons = nil
		for _, r := range all {
			n.reasons = append(n.reasons, r...)
		}
		n.asked = time.Now()
	}
	return append([]rpc.Reason(nil), n.reasons...)
}

// reasons returns why a role is not ready, each prefixed with the role's name.
func (c *child) reasons(ctx context.Context, scheme string) []rpc.Reason {
	name := string(c.role.Name)
	c.mu.Lock()
	down := c.down
	c.mu.Unlock()
	if c.proc.Gone() {
		return []rpc.Reason{{Code: reasonRemoved, Detail: name + ": " + down}}
	}
	if down != "" {
		return []rpc.Reason{{Code: reasonDown, Detail: name + ": " + down}}
	}
	silent := func(err error) []rpc.Reason {
		return []rpc.Reason{{Code: reasonDown, Detail: fmt.Sprintf("%s: it does not answer: %v", name, err)}}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, tlsconf.BaseURL(scheme, c.role.Admin)+"/readyz", nil)
	if err != nil {
		return silent(err)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return silent(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	p := rpc.ReadProblem(resp)
	if len(p.Reasons) == 0 {
		return []rpc.Reason{{Code: strings.ToLower(string(p.Code)), Detail: name + ": " + p.Error()}}
	}
	var all []rpc.Reason
	for _, r := range p.Reasons {
		r.Detail = name + ": " + r.Detail
		all = append(all, r)
	}
	return all
}

// lines forwards whole lines, so that the output of several roles does not mix.
type lines struct {
	to   io.Writer
	tail *tail
	part []byte // an unfinished line
}

// Write implements io.Writer; only one goroutine writes. It never fails: lines that the log does not take are
// dropped.
func (l *lines) Write(p []byte) (int, error) {
	l.part = append(l.part, p...)
	end := bytes.LastIndexByte(l.part, '\n') + 1
	if end == 0 && len(l.part) < maxLine {
		return len(p), nil
	}
	if end == 0 {
		end = len(l.part)
	}
	l.pass(l.part[:end])
	l.part = append(l.part[:0], l.part[end:]...)
	return len(p), nil
}

func (l *lines) pass(b []byte) {
	l.tail.add(b)
	_, _ = l.to.Write(b)
}

// Close forwards an unfinished line.
func (l *lines) Close() error {
	if len(l.part) > 0 {
		l.pass(append(l.part, '\n'))
		l.part = nil
	}
	return nil
}

// tail holds the end of a role's output.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) add(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - keptOutput; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
}

func (t *tail) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = t.text[:0]
}

// String returns the text.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
