package feed_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"time"

	"tidemark/kv/kvclient"
)

// A version that only changes extended attributes is the same document again; the body of a deletion is not a
// document.
func changesOfAttributes(s *stage) {
	m := s.mirror()
	c := s.feed()
	m.follow(s, c, all())
	for i := range 60 {
		s.set(fmt.Sprint("k", i%20), fmt.Sprint(i))
	}
	for i := range 5 {
		s.remove(fmt.Sprint("k", i))
	}
	m.read(s, c, targets(s, c))
	s.compare(m)
	_ = c.Close()
	s.catchUp(s.mirror())
}

// Documents that a full engine evicts are deleted like others.
func evictions(s *stage) {
	m := s.mirror()
	c := s.feed()
	m.follow(s, c, all())
	for i := range 400 {
		s.set(fmt.Sprint("k", i), fmt.Sprint(i))
	}
	gone := 0
	for key := range s.truth {
		_, err := s.writer.Get(within(s, time.Minute), key)
		switch {
		case err == nil:
		case isMissing(err):
			delete(s.truth, key)
			gone++
		default:
			s.Fatal(err)
		}
	}
	if gone == 0 {
		s.Fatal("nothing was evicted")
	}
	m.read(s, c, targets(s, c))
	s.compare(m)
}

// A snapshot that is cut short and continued from disk is not a state: a consumer that resumes within it states so by
// its window. The next one may begin inside the range already received.
func cursorDropped(s *stage) {
	for i := range 40 {
		s.set(fmt.Sprint("k", i), "before")
	}
	m := s.mirror()
	c := s.feed()
	m.follow(s, c, all())
	for round := range 12 {
		m.read(s, c, targets(s, c)) // so that later events come from memory
		var keys []string
		for i := range 40 {
			keys = append(keys, fmt.Sprint("k", i))
		}
		s.setAll(keys, fmt.Sprint(round))
	}
	for vb, p := range m.at {
		if p.SnapStart > p.Complete && p.Complete < p.Seqno {
			s.Errorf("vbucket %d: complete at %d, and the window begins at %d", vb, p.Complete, p.SnapStart)
		}
	}
	m.read(s, c, targets(s, c))
	s.compare(m)
	if n := s.catchUp(m); n > 0 {
		s.Errorf("%d vbuckets were rolled back", n)
	}
}

// setAll stores many documents concurrently, so that they come in few snapshots.
func (s *stage) setAll(keys []string, value string) {
	s.Helper()
	errs := make(chan error, len(keys))
	for part := range slices.Chunk(keys, 5) {
		go func() {
			for _, key := range part {
				_, err := s.writer.Set(within(s, time.Minute), key, []byte(value), kvclient.StoreOptions{})
				errs <- err
			}
		}()
	}
	for range keys {
		if err := <-errs; err != nil {
			s.Fatal(err)
		}
	}
	for _, key := range keys {
		s.truth[key] = value
	}
}

// A killed node has lost what it had acknowledged and not stored; a consumer that received it rolls back.
func unpersisted(s *stage) {
	for i := range 100 {
		s.set(fmt.Sprint("k", i), "1")
	}
	s.stop()
	s.open()
	m := s.mirror()
	kept := maps.Clone(s.truth)
	for i := range 100 {
		s.set(fmt.Sprint("k", i), "lost")
		s.set(fmt.Sprint("new", i), "lost")
	}
	s.catchUp(m)
	s.node.Lose()
	s.stop()
	s.killed()
	s.truth = kept
	s.open()
	s.set("k7", "after")
	if n := s.catchUp(m); n != stageVBuckets {
		s.Errorf("%d vbuckets were rolled back, want all", n)
	}
}

// A connection with nothing but noops stays open, and delivers what comes after them.
func idle(s *stage) {
	s.set("a", "1")
	conf := s.conf()
	conf.NoopInterval = time.Second
	c := dialWith(s, s.dial, conf)
	m := s.mirror()
	m.follow(s, c, all())
	m.read(s, c, targets(s, c))
	over := time.After(*idleFor)
	select {
	case <-c.Done():
		s.Fatal(c.Err())
	case <-over:
	}
	s.set("a", "2")
	m.read(s, c, targets(s, c))
	s.compare(m)
}

func isMissing(err error) bool { return errors.Is(err, kvclient.ErrKeyNotFound) }
