package feed_test

import (
	"context"
	"encoding/binary"
	"strings"
	"time"

	"github.com/golang/snappy"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/projector/feed"
)

// Scenarios about what accompanies documents: compression, extended attributes, bodies of deletions.

// raw is a connection for writes that the writer cannot make. The node may be warming up.
func (s *stage) raw(features ...mcbp.Feature) func(f mcbp.Frame) {
	s.Helper()
	var c *kvclient.Conn
	if err := patiently(s, func() (err error) {
		c, err = kvclient.Dial(within(s, time.Minute), s.node.MemcachedAddr(),
			kvclient.Options{User: kvUser, Password: kvPassword, Bucket: kvBucket, Name: "raw", Features: features})
		return err
	}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = c.Close() })
	return func(f mcbp.Frame) {
		s.Helper()
		h := mcbp.Request(f.Op, mcbp.VBucket(f.Key, stageVBuckets), 0)
		h.Datatype = f.Datatype
		f.Header = h
		if err := patiently(s, func() error {
			answer, err := c.Do(within(s, time.Minute), f)
			if err != nil {
				return err
			}
			return kvclient.NewStatusError(answer)
		}); err != nil {
			s.Fatalf("%v %q: %v", f.Op, f.Key, err)
		}
	}
}

// attributes returns a section of extended attributes: names and values alternate.
func attributes(pairs ...string) (section []byte) {
	for i := 0; i < len(pairs); i += 2 {
		section = binary.BigEndian.AppendUint32(section, uint32(len(pairs[i])+len(pairs[i+1])+2))
		section = append(append(append(append(section, pairs[i]...), 0), pairs[i+1]...), 0)
	}
	return section
}

// withAttributes returns a value with both.
func withAttributes(section []byte, body string) []byte {
	return append(mcbp.AppendXattrs(nil, section), body...)
}

func storeFrame(key string, datatype mcbp.Datatype, value []byte) mcbp.Frame {
	return mcbp.Frame{Header: mcbp.Header{Op: mcbp.OpSet, Datatype: datatype}, Extras: mcbp.Store{}.AppendExtras(nil),
		Key: []byte(key), Value: value}
}

// Values that the node compresses, and values that a client stored compressed, arrive unchanged, whatever they
// contain; on the wire they are small.
func compressed(s *stage) {
	big := `{"a":"` + strings.Repeat("x", 2<<20) + `"}`
	s.set("big", big)
	s.set("small", `{"a":1}`)
	s.set("binary", "\x00\xff\xfe\x80")
	s.set("empty", "")
	put := s.raw(mcbp.FeatureSnappy, mcbp.FeatureXattr, mcbp.FeatureJSON)
	put(storeFrame("stored compressed", mcbp.DatatypeSnappy, snappy.Encode(nil, []byte(big))))
	section := attributes("_sync", `{"rev":1}`, "mine", `"x"`)
	put(storeFrame("both", mcbp.DatatypeSnappy|mcbp.DatatypeXattr, snappy.Encode(nil, withAttributes(section, big))))
	s.truth["stored compressed"], s.truth["both"] = big, big
	sent := s.node.Status().Counters.DCPBytes
	s.catchUp(s.mirror())
	if sent = s.node.Status().Counters.DCPBytes - sent; sent > int64(len(big)) {
		s.Errorf("three documents of %d bytes took %d bytes on the wire", len(big), sent)
	}
	conf := s.conf()
	conf.Xattrs = true
	if e := s.only(conf, "both"); e.xattrs != string(section) || e.value != big || e.bad {
		s.Errorf("attributes %q, a value of %d bytes, undecodable %t", e.xattrs, len(e.value), e.bad)
	}
	// The store has them unchanged.
	if d, err := s.writer.Get(within(s, time.Minute), "stored compressed"); err != nil || string(d.Value) != big ||
		d.Datatype.Has(mcbp.DatatypeSnappy) {
		s.Errorf("the store has %d bytes of datatype %d: %v", len(d.Value), d.Datatype, err)
	}
}

// shownEvent is the part of a document's event that is compared.
type shownEvent struct {
	kind          feed.Kind
	value, xattrs string
	bad           bool
}

// only returns the newest event of a key, in its vbucket's whole stream.
func (s *stage) only(conf feed.Config, key string) (last shownEvent) {
	s.Helper()
	c := dialWith(s, s.dial, conf)
	defer func() { _ = c.Close() }()
	vb := mcbp.VBucket([]byte(key), stageVBuckets)
	goal := targets(s, c)[vb]
	if err := patiently(s, func() error {
		_, err := c.OpenStream(within60(s), feed.StreamRequest{VBucket: vb, End: mcbp.EndOfTime})
		return err
	}); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for at := uint64(0); at < goal; {
		b, err := c.Next(ctx)
		if err != nil {
			s.Fatal(err)
		}
		for i := range b.Events {
			e := &b.Events[i]
			at = max(at, e.Seqno)
			if e.Kind.IsDocument() && string(e.Key) == key {
				last = shownEvent{e.Kind, string(e.Value), string(e.Xattrs), e.Undecodable}
			}
		}
		b.Release()
	}
	return last
}

// A deletion may have a body, and extended attributes that outlive the document: those of the system. In any case the
// document is gone, also after a restart of the node.
func deletionsWithBodies(s *stage) {
	put := s.raw(mcbp.FeatureSnappy, mcbp.FeatureXattr, mcbp.FeatureJSON)
	system, section := attributes("_sync", `{"rev":2}`), attributes("_sync", `{"rev":2}`, "mine", `"x"`)
	for _, key := range []string{"attributes", "mine only", "plain"} {
		s.set(key, "1")
	}
	put(storeFrame("attributes", mcbp.DatatypeXattr, withAttributes(section, `{"a":1}`)))
	put(storeFrame("mine only", mcbp.DatatypeXattr, withAttributes(attributes("mine", "1"), `{"a":1}`)))
	for _, key := range []string{"attributes", "mine only", "plain"} {
		s.remove(key)
	}
	meta := mcbp.WithMeta{Time: uint32(time.Now().Unix()), Rev: 7, CAS: 1 << 40}.AppendExtras(nil)
	put(mcbp.Frame{Header: mcbp.Header{Op: mcbp.OpDeleteWithMeta, Datatype: mcbp.DatatypeXattr | mcbp.DatatypeSnappy},
		Extras: meta, Key: []byte("buried"),
		Value: snappy.Encode(nil, withAttributes(section, `{"left":true}`))})
	s.set("stays", "1")
	for round := range 2 {
		for _, x := range []struct {
			key         string
			xattrs      bool
			value, seen string
		}{
			{key: "attributes", xattrs: true, seen: string(system)},
			{key: "attributes"},
			{key: "mine only", xattrs: true},
			{key: "plain", xattrs: true},
			{key: "buried", xattrs: true, value: `{"left":true}`, seen: string(system)},
			{key: "buried", value: `{"left":true}`},
		} {
			conf := s.conf()
			conf.Xattrs = x.xattrs
			if e := s.only(conf, x.key); e != (shownEvent{feed.Deletion, x.value, x.seen, false}) {
				s.Errorf("round %d: %q with attributes %t: %+v, want value %q and attributes %q", round, x.key, x.xattrs, e,
					x.value, x.seen)
			}
		}
		s.catchUp(s.mirror())
		if round == 0 {
			s.stop()
			s.open()
		}
	}
}
