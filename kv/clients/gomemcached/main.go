// Command gomemcached checks that Couchbase's gomemcached client works against an embedded KV node: documents,
// counters, CAS, statistics, and a DCP stream.
//
//	tidemark kv --allow-plain --buckets plain:5a3e:1 …
//	go run ./kv/clients/gomemcached HOST:PORT USER PASSWORD BUCKET
//
// The bucket has one vbucket. It prints what worked and ends with "ok", or with the first failure.
package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/couchbase/gomemcached"
	memcached "github.com/couchbase/gomemcached/client"
	"github.com/couchbase/goutils/logging"
)

const (
	patience = 30 * time.Second
	window   = 1 << 20 // bytes of flow control
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: gomemcached HOST:PORT USER PASSWORD BUCKET")
		os.Exit(2)
	}
	logging.SetLogger(nil) // it logs every stream
	c, err := connect(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
	if err == nil {
		err = errors.Join(documents(c), counters(c), statistics(c))
	}
	if err == nil {
		err = stream(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gomemcached:", err)
		os.Exit(1)
	}
	fmt.Println("ok")
}

func connect(addr, user, password, bucket string) (*memcached.Client, error) {
	c, err := memcached.Connect("tcp", addr)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.AuthScramSha(user, password); err != nil {
		return nil, fmt.Errorf("SCRAM: %w", err)
	}
	if _, err := c.AuthPlain(user, password); err != nil {
		return nil, fmt.Errorf("PLAIN: %w", err)
	}
	if _, err := c.SelectBucket(bucket); err != nil {
		return nil, fmt.Errorf("select bucket: %w", err)
	}
	if _, err := c.EnableFeatures(memcached.Features{memcached.FeatureMutationToken, memcached.FeatureXattr,
		memcached.FeatureXerror, memcached.FeatureDataType}); err != nil {
		return nil, fmt.Errorf("features: %w", err)
	}
	fmt.Println("authenticated with SCRAM and PLAIN, bucket selected")
	return c, nil
}

// want returns an error for an answer that is not the expected one.
func want(what string, got, wanted any, err error) error {
	if err == nil && fmt.Sprint(got) == fmt.Sprint(wanted) {
		return nil
	}
	return fmt.Errorf("%s: got %v (%w), want %v", what, got, err, wanted)
}

func documents(c *memcached.Client) error {
	_, err := c.Set(0, "airport", 7, 0, []byte(`{"name":"Frankfurt"}`))
	if err != nil {
		return fmt.Errorf("set: %w", err)
	}
	r, err := c.Get(0, "airport")
	if err := want("get", string(r.Body), `{"name":"Frankfurt"}`, err); err != nil {
		return err
	}
	if r, _ := c.Add(0, "airport", 0, 0, []byte("x")); r == nil || r.Status != gomemcached.KEY_EEXISTS {
		return errors.New("add of a key that is there: not refused as it should be")
	}
	if r, _ := c.SetCas(0, "airport", 0, 0, r.Cas+1, []byte("x")); r == nil || r.Status != gomemcached.KEY_EEXISTS {
		return errors.New("set with another cas: not refused as it should be")
	}
	_, err = c.CAS(0, "airport", func([]byte) ([]byte, memcached.CasOp) { return []byte(`["a`), memcached.CASStore }, 0)
	if err != nil {
		return fmt.Errorf("cas: %w", err)
	}
	if _, err := c.Append(0, "airport", []byte(`"]`)); err != nil {
		return fmt.Errorf("append: %w", err)
	}
	bulk := map[string]*gomemcached.MCResponse{}
	if err := c.GetBulk(0, []string{"airport", "nothing"}, bulk, nil); err != nil || len(bulk) != 1 ||
		string(bulk["airport"].Body) != `["a"]` {
		return fmt.Errorf("get bulk: %v %w", bulk, err)
	}
	if _, err := c.GetAndTouch(0, "airport", 3600); err != nil {
		return fmt.Errorf("get and touch: %w", err)
	}
	if _, err := c.Del(0, "airport"); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if r, _ := c.Get(0, "airport"); r == nil || r.Status != gomemcached.KEY_ENOENT {
		return errors.New("get of a deleted document: not refused as it should be")
	}
	fmt.Println("set, get, add, cas, append, get bulk, get and touch, delete")
	return nil
}

func counters(c *memcached.Client) error {
	n, err := c.Incr(0, "counter", 1, 41, 0)
	if err := want("incr, created", n, 41, err); err != nil {
		return err
	}
	n, err = c.Incr(0, "counter", 1, 41, 0)
	if err := want("incr", n, 42, err); err != nil {
		return err
	}
	n, err = c.Decr(0, "counter", 100, 0, 0)
	if err := want("decr", n, 0, err); err != nil {
		return err
	}
	fmt.Println("incr, decr")
	return nil
}

func statistics(c *memcached.Client) error {
	all, err := c.StatsMap("")
	if err == nil && all["curr_items"] == "" {
		err = errors.New("no curr_items")
	}
	if err != nil {
		return fmt.Errorf("stats: %w", err)
	}
	for _, group := range []string{"vbucket-seqno", "vbucket-details", "failovers", "dcp", "uuid", "warmup",
		"collections"} {
		if _, err := c.StatsMap(group); err != nil {
			return fmt.Errorf("stats %s: %w", group, err)
		}
	}
	seqnos, err := c.GetAllVbSeqnos(nil)
	if err != nil || len(seqnos) != 1 || seqnos[0] < 8 {
		return fmt.Errorf("seqnos: %v %w", seqnos, err)
	}
	details, err := c.StatsMap("vbucket-details 0")
	if err != nil {
		return fmt.Errorf("stats vbucket-details 0: %w", err)
	}
	var uuid uint64
	if _, err := fmt.Sscan(details["vb_0:uuid"], &uuid); err != nil {
		return fmt.Errorf("uuid of vbucket 0: %w", err)
	}
	o, err := c.ObserveSeq(0, uuid)
	if err != nil || o.LastPersistedSeqNo != seqnos[0] {
		return fmt.Errorf("observe seqno: %+v %w", o, err)
	}
	if _, err := c.GetErrorMap(gomemcached.ErrorMapCB75); err != nil {
		return fmt.Errorf("error map: %w", err)
	}
	fmt.Println("stats, seqnos, observe seqno, error map")
	return nil
}

// stream streams vbucket 0 from its beginning to its present end: only the newest version of each key.
func stream(c *memcached.Client) error {
	seqnos, err := c.GetAllVbSeqnos(nil)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Time{})
	feed, err := c.NewUprFeed()
	if err != nil {
		return err
	}
	defer feed.Close()
	if err, _ := feed.UprOpenWithFeatures("gomemcached-example", 0, window,
		memcached.UprFeatures{Xattribute: true, SendStreamEndOnClose: true}); err != nil {
		return fmt.Errorf("dcp open: %w", err)
	}
	if err := feed.StartFeed(); err != nil {
		return err
	}
	if err := feed.UprRequestStream(0, 1, 0, 0, 0, seqnos[0], 0, 0); err != nil {
		return fmt.Errorf("dcp stream: %w", err)
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	seen := map[string]gomemcached.CommandCode{}
	for last := uint64(0); ; {
		var e *memcached.UprEvent
		select {
		case e = <-feed.GetUprEventCh():
		case <-late.C:
			return errors.New("the stream did not end")
		}
		if e == nil {
			return fmt.Errorf("the feed ended: %w", feed.GetError())
		}
		switch e.Opcode {
		case gomemcached.UPR_MUTATION, gomemcached.UPR_DELETION:
			if e.Seqno <= last || seen[string(e.Key)] != 0 {
				return fmt.Errorf("%s at %d after %d", e.Key, e.Seqno, last)
			}
			last, seen[string(e.Key)] = e.Seqno, e.Opcode
		case gomemcached.UPR_STREAMEND:
			if seen["airport"] != gomemcached.UPR_DELETION || seen["counter"] != gomemcached.UPR_MUTATION || last != seqnos[0] ||
				last == math.MaxUint64 {
				return fmt.Errorf("the stream to %d had %v", seqnos[0], seen)
			}
			fmt.Println("dcp: a finite stream, de-duplicated, with its end")
			return nil
		}
	}
}
