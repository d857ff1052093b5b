package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sync/errgroup"

	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/restmap"
	"tidemark/kv/mcbp"
)

// managerAnswer is the answer of a cluster manager.
type managerAnswer struct {
	addr   string
	answer restmap.Answer
	err    error
}

// queryManagers requests the bucket's map from all managers concurrently.
func (o Options) queryManagers(ctx context.Context) []managerAnswer {
	out := make([]managerAnswer, len(o.Managers))
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for i, addr := range o.Managers {
		g.Go(func() error {
			s := restmap.New(restmap.Options{Managers: []string{addr}, Pinned: true, Bucket: o.KV.Bucket, User: o.KV.User,
				Password: func() (string, error) { return o.KV.Password, nil }, TLS: o.KV.TLS, Timeout: o.Timeout})
			out[i].addr = addr
			out[i].err = again(ctx, func() (err error) {
				out[i].answer, err = s.Ask(ctx)
				return err
			})
			return nil
		})
	}
	_ = g.Wait() // none fails
	return out
}

// newestOf returns the newest map of the managers; nil if none returned one.
func newestOf(all []managerAnswer) *managerAnswer {
	var newest *managerAnswer
	for i := range all {
		if all[i].err == nil && (newest == nil || all[i].answer.Config.Newer(newest.answer.Config)) {
			newest = &all[i]
		}
	}
	return newest
}

// seeds returns the nodes with documents by the managers' newest map.
func (o Options) seeds(managers []managerAnswer) (out []string) {
	m := newestOf(managers)
	if m == nil {
		return nil
	}
	for n := range m.answer.Config.NumNodes() {
		network := m.answer.Network(o.KV.Network)
		if addr, err := m.answer.Config.KVAddrIn(network, n, m.answer.Host(), o.KV.TLS != nil); err == nil {
			out = append(out, addr)
		}
	}
	return out
}

// judgeManagers judges the managers that the caller named.
func (c *cluster) judgeManagers(p *reporter, o Options) {
	for _, m := range c.managers {
		p.add(checkManager, c.managerOf(m), m.addr)
		if host, _, err := net.SplitHostPort(m.addr); o.KV.TLS == nil && o.KV.User != "" && m.err == nil && err == nil &&
			host != "localhost" && !net.ParseIP(host).IsLoopback() {
			p.add(checkManager, finding{Warning, "the password is sent to it unencrypted",
				"use https:// if the cluster has TLS, otherwise couchbase://, which does not send the password"}, m.addr)
		}
	}
}

// shownMap judges the map of a manager.
func (c *cluster) shownMap(its *mcbp.ClusterConfig) finding {
	switch {
	case c.config != nil && c.config.UUID != its.UUID:
		return finding{Fails, fmt.Sprintf("it returns another bucket of the name: uuid %.40q, not %.40q", its.UUID,
			c.config.UUID), "name managers of one cluster; if the bucket was just created again, try again"}
	case c.config != nil && c.config.Newer(its):
		return finding{Warning, fmt.Sprintf("its map is older: revision %d.%d, not %d.%d", its.RevEpoch, its.Rev,
			c.config.RevEpoch, c.config.Rev), "it should soon have the newest"}
	case its.ThisNode() < 0:
		return finding{Warning, "it returns the map, but its own node has no vbuckets of the bucket",
			"a projector names the manager of the node whose vbuckets it streams"}
	}
	return finding{result: OK, seen: "it returns the map"}
}

func (c *cluster) managerOf(m managerAnswer) finding {
	switch {
	case m.err == nil:
		return c.shownMap(m.answer.Config)
	case errors.Is(m.err, mcbp.ErrNoVBuckets):
		return finding{Fails, "the bucket is of type Memcached: it has no vbuckets",
			"use a bucket of type Couchbase or Ephemeral"}
	case errors.Is(m.err, kvclient.ErrAuth):
		return finding{Fails, m.err.Error(), "see --kv-user and --kv-password-file, and " + rightsPage}
	case errors.Is(m.err, kvclient.ErrNoBucket):
		return finding{Fails, m.err.Error(), "name a bucket of the cluster (--bucket)"}
	}
	result := Fails
	if newestOf(c.managers) != nil {
		result = Warning // another manager has returned the map
	}
	return finding{result, m.err.Error(), "check that a cluster manager listens there (8091, with TLS 18091), or name " +
		"the nodes themselves (couchbase://)"}
}

// causeOfManagers is causeOf if no manager has returned a map.
func causeOfManagers(all []managerAnswer) error {
	for _, m := range all {
		for _, known := range []error{kvclient.ErrNoBucket, kvclient.ErrAuth} {
			if errors.Is(m.err, known) {
				return known
			}
		}
	}
	return kvclient.ErrNoMap
}
