package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"tidemark/internal/tlsconf"
	"tidemark/kv/kvclient"
	"tidemark/projector/core"
)

const (
	// seedTimeout bounds the wait for one of the configured nodes.
	seedTimeout = 3 * time.Second
	// seedRest is the time between two attempts to find one, seedKept between two checks whether the present one still
	// answers.
	seedRest = 2 * time.Second
	seedKept = 10 * time.Second
)

// findSeeds looks for a node that answers whenever no map is known, until ctx ends. It tries the previous one first,
// so that the seed stays the same.
func (f *Fleet) findSeeds(ctx context.Context) {
	var logged troubleLog
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.looking:
		}
		f.mu.Lock()
		have := f.seed
		f.mu.Unlock()
		n, err := f.answering(ctx, have)
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		if f.seedErr = ""; err == nil {
			f.seed = n
		} else {
			f.seedErr = err.Error()
		}
		f.mu.Unlock()
		rest := seedKept
		if err != nil {
			rest = seedRest
			if logged.news(time.Now(), err.Error()) {
				f.log.Warn("none of the given KV nodes answers; trying again", "error", err)
			}
		} else if n != have {
			signal(f.wake)
		}
		if err == nil && logged.over() {
			f.log.Info("one of the given KV nodes answers", "addr", n.Addr)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(rest):
		}
	}
}

// answering returns have if it answers, or else the first of the configured ones that does.
func (f *Fleet) answering(ctx context.Context, have core.KVNode) (core.KVNode, error) {
	all := make([]core.KVNode, 0, len(f.cfg.Seeds)+len(f.cfg.Managers))
	for _, addr := range f.cfg.Seeds {
		all = append(all, core.KVNode{Name: addr, Addr: addr})
	}
	for _, addr := range f.cfg.Managers {
		all = append(all, core.KVNode{Name: addr, Addr: addr, Manager: addr})
	}
	if have.Name != "" && f.probe(ctx, have) == nil {
		return have, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		at  int
		err error
	}
	answers := make(chan answer, len(all))
	for i, n := range all {
		go func() { answers <- answer{i, f.probe(ctx, n)} }()
	}
	errs := make([]error, len(all)) // in configured order: the message stays the same
	for range all {
		a := <-answers
		if a.err == nil {
			return all[a.at], nil
		}
		errs[a.at] = a.err
	}
	return core.KVNode{}, errors.Join(errs...)
}

// probe returns why a node, or a manager, does not answer; nil if it does.
func (f *Fleet) probe(ctx context.Context, n core.KVNode) error {
	ctx, cancel := context.WithTimeout(ctx, seedTimeout)
	defer cancel()
	c := &f.cfg.Projector
	if n.Manager != "" {
		return f.probeManager(ctx, n.Manager)
	}
	password, err := c.Password, error(nil)
	if c.ReadPassword != nil {
		if password, err = c.ReadPassword(); err != nil {
			return err
		}
	}
	encrypted, err := c.TLSToKV()
	if err != nil {
		return err
	}
	s, err := kvclient.Handshake(ctx, n.Addr, kvclient.Options{User: c.User, Password: password, TLS: encrypted,
		Name: "tidemark:" + string(c.ID), DialTimeout: seedTimeout})
	if err != nil {
		return err
	}
	return s.Close()
}

// probeManager accepts any answer: the bucket is not known yet, nor what the user may read.
func (f *Fleet) probeManager(ctx context.Context, addr string) error {
	conf, err := f.cfg.Projector.TLSToKV()
	if err != nil {
		return err
	}
	scheme := "http"
	if conf != nil {
		scheme = "https"
	}
	dial := (&net.Dialer{Timeout: seedTimeout}).DialContext
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dial,
		// The end of the request does not reach the context that it is called with.
		DialTLSContext: func(_ context.Context, network, addr string) (net.Conn, error) {
			return kvclient.DialTLS(ctx, dial, network, addr, conf)
		}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, tlsconf.BaseURL(scheme, addr)+"/pools", nil)
	if err != nil {
		return fmt.Errorf("cluster manager %s: %w", addr, err)
	}
	resp, err := (&http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}).Do(r)
	if err != nil {
		return fmt.Errorf("cluster manager %s: %w", addr, err)
	}
	return resp.Body.Close()
}
