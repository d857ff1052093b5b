package kv

import (
	"errors"
	"testing"
	"time"

	"tidemark/kv/kvclient"
)

// The wall clock of one of three nodes jumps 26 hours forward and back while clients write: acknowledged writes stay,
// CAS values rise, only documents that expire by that clock expire, also on the replicas, and vbuckets can be moved.
func TestAClockThatJumps(t *testing.T) {
	clock := newClock()
	g := newGroupWith(t, 3, 1, func(c *Config) {
		if c.NodeID == "kv1" {
			c.Now = clock.now
		}
	})
	c := g.client()
	m := g.nodes["kv1"].View().Map
	vb := uint16(0)
	for m.Buckets[0].Chains[vb][0] != "kv1" {
		vb++
	}
	keys := keysOf(vb, 16, 3)
	set := func(key string, expiry time.Duration) kvclient.Mutation {
		t.Helper()
		o := kvclient.StoreOptions{}
		if expiry > 0 {
			o.Expiry = uint32(clock.now().Add(expiry).Unix())
		}
		mut, err := c.Set(within(t), key, []byte("1"), o)
		if err != nil {
			t.Fatal(err)
		}
		return mut
	}
	set(keys[0], time.Hour)
	set(keys[1], 72*time.Hour)
	cas := set(keys[2], 0).CAS
	h := newHistory()
	stop := h.run(t, c)
	h.count(t, 200)
	for _, jump := range []time.Duration{26 * time.Hour, -26 * time.Hour} {
		clock.add(jump)
		h.count(t, 200)
		next := set(keys[2], 0).CAS
		if next <= cas {
			t.Errorf("after %v the CAS is %d, before %d", jump, next, cas)
		}
		cas = next
		if _, err := c.Get(within(t), keys[0]); !errors.Is(err, kvclient.ErrKeyNotFound) { // it stays expired
			t.Errorf("after %v what was to live for an hour: %v", jump, err)
		}
		if _, err := c.Get(within(t), keys[1]); err != nil {
			t.Errorf("after %v what was to live for three days: %v", jump, err)
		}
	}
	if err := g.post("kv1", pathRebalance, RebalanceRequest{Remove: []string{"kv1"}}, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if v := g.nodes["kv2"].View(); v.Map.Operation != nil || len(v.Map.Nodes) != 2 {
			return errors.New("kv1 has not been removed yet")
		}
		return nil
	})
	h.count(t, 100)
	stop()
	h.check(t, c)
	g.same()
	if _, err := c.Get(within(t), keys[0]); !errors.Is(err, kvclient.ErrKeyNotFound) {
		t.Errorf("it is back: %v", err)
	}
}
