package kv

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

// observer turns gocbcore's stream callbacks into lines.
type observer struct{ lines chan string }

func newObserver() *observer { return &observer{lines: make(chan string, 10000)} }

func (o *observer) add(format string, args ...any) { o.lines <- fmt.Sprintf(format, args...) }

func (o *observer) SnapshotMarker(m gocbcore.DcpSnapshotMarker) {
	o.add("snapshot %d-%d %d", m.StartSeqNo, m.EndSeqNo, m.SnapshotType)
}
func (o *observer) Mutation(m gocbcore.DcpMutation) {
	o.add("mutation %d %s=%s", m.SeqNo, m.Key, m.Value)
}
func (o *observer) Deletion(m gocbcore.DcpDeletion)                     { o.add("deletion %d %s", m.SeqNo, m.Key) }
func (o *observer) Expiration(m gocbcore.DcpExpiration)                 { o.add("expiration %d %s", m.SeqNo, m.Key) }
func (o *observer) End(_ gocbcore.DcpStreamEnd, err error)              { o.add("end %v", err) }
func (o *observer) CreateCollection(gocbcore.DcpCollectionCreation)     { o.add("create collection") }
func (o *observer) DeleteCollection(gocbcore.DcpCollectionDeletion)     { o.add("delete collection") }
func (o *observer) FlushCollection(gocbcore.DcpCollectionFlush)         { o.add("flush collection") }
func (o *observer) CreateScope(gocbcore.DcpScopeCreation)               { o.add("create scope") }
func (o *observer) DeleteScope(gocbcore.DcpScopeDeletion)               { o.add("delete scope") }
func (o *observer) ModifyCollection(gocbcore.DcpCollectionModification) { o.add("modify collection") }
func (o *observer) OSOSnapshot(gocbcore.DcpOSOSnapshot)                 { o.add("oso") }
func (o *observer) SeqNoAdvanced(a gocbcore.DcpSeqNoAdvanced)           { o.add("advanced %d", a.SeqNo) }

func (o *observer) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case got := <-o.lines:
			if got != w {
				t.Fatalf("got %q, want %q", got, w)
			}
		case <-time.After(testTimeout):
			t.Fatalf("nothing came, want %q", w)
		}
	}
}

func openStream(t *testing.T, a *gocbcore.DCPAgent, vb uint16, flags memd.DcpStreamAddFlag, uuid, start, end, snapStart,
	snapEnd uint64, o *observer) ([]gocbcore.FailoverEntry, error) {
	t.Helper()
	var log []gocbcore.FailoverEntry
	err := await(t, func(done chan<- error) error {
		_, err := a.OpenStream(vb, flags, gocbcore.VbUUID(uuid), gocbcore.SeqNo(start), gocbcore.SeqNo(end),
			gocbcore.SeqNo(snapStart), gocbcore.SeqNo(snapEnd),
			o, gocbcore.OpenStreamOptions{}, func(l []gocbcore.FailoverEntry, err error) {
				log = l
				done <- err
			})
		return err
	})
	return log, err
}

const endless = ^uint64(0)

func TestGocbcoreAgents(t *testing.T) {
	n, _ := runNode(t, testConfig(t.TempDir()))
	kv := kvAgent(t, n.MemcachedAddr(), "world")
	keys := keysOf(3, 16, 4)

	first := set(t, kv, keys[0], `{"n":1}`)
	if first.SeqNo != 1 || first.VbUUID == 0 || first.VbID != 3 {
		t.Fatalf("mutation token %+v", first)
	}
	set(t, kv, keys[1], `{"n":2}`)
	set(t, kv, keys[0], `{"n":3}`) // de-duplicates 1
	remove(t, kv, keys[1])         // de-duplicates 2
	if v, err := get(t, kv, keys[0]); v != `{"n":3}` || err != nil {
		t.Fatalf("get: %q %v", v, err)
	}
	if _, err := get(t, kv, keys[1]); !errors.Is(err, gocbcore.ErrDocumentNotFound) {
		t.Fatalf("get of a deleted document: %v", err)
	}

	dcp := dcpAgent(t, n.MemcachedAddr(), "world", "test:1", memd.DcpOpenFlagProducer|memd.DcpOpenFlagIncludeDeleteTimes)
	o := newObserver()
	log, err := openStream(t, dcp, 3, memd.DcpStreamAddFlagActiveOnly, 0, 0, endless, 0, 0, o)
	if err != nil || len(log) != 1 || log[0].VbUUID != first.VbUUID {
		t.Fatalf("open stream: %v %v", log, err)
	}
	o.expect(t, "snapshot 0-4 2", "mutation 3 "+keys[0]+`={"n":3}`, "deletion 4 "+keys[1])
	set(t, kv, keys[2], `{"live":true}`)
	o.expect(t, "snapshot 5-5 1", "mutation 5 "+keys[2]+`={"live":true}`)

	if _, err := openStream(t, dcp, 3, 0, 0, 0, endless, 0, 0, newObserver()); !errors.Is(err,
		gocbcore.ErrMemdKeyExists) && !errors.Is(err, gocbcore.ErrDocumentExists) {
		t.Fatalf("second stream of one vbucket: %v", err)
	}
	err = await(t, func(done chan<- error) error {
		_, err := dcp.CloseStream(3, gocbcore.CloseStreamOptions{}, func(err error) { done <- err })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case line := <-o.lines:
		if !strings.HasPrefix(line, "end") {
			t.Fatalf("after close: %q", line)
		}
	case <-time.After(testTimeout):
		t.Fatal("no end after close")
	}
	finite := newObserver()
	if _, err := openStream(t, dcp, 3, 0, 0, 0, 4, 0, 0, finite); err != nil {
		t.Fatal(err)
	}
	finite.expect(t, "snapshot 0-5 2", "mutation 3 "+keys[0]+`={"n":3}`, "deletion 4 "+keys[1], "mutation 5 "+keys[2]+`={"live":true}`, "end <nil>")

	var rollback gocbcore.DCPRollbackError
	if _, err := openStream(t, dcp, 3, 0, uint64(first.VbUUID), 8, endless, 0, 9, newObserver()); !errors.As(err,
		&rollback) || rollback.SeqNo != 0 {
		t.Fatalf("ahead of the producer inside a snapshot from 0: %v", err)
	}
	if _, err := openStream(t, dcp, 3, 0, uint64(first.VbUUID), 9, endless, 9, 9, newObserver()); !errors.As(err,
		&rollback) || rollback.SeqNo != 5 {
		t.Fatalf("ahead of the producer: %v", err)
	}
	if _, err := openStream(t, dcp, 3, 0, 12345, 3, endless, 3, 3, newObserver()); !errors.As(err, &rollback) ||
		rollback.SeqNo != 0 {
		t.Fatalf("unknown branch: %v", err)
	}
	if s := n.Status(); s.Counters.DCPOpens < 1 || s.Counters.StreamRequests < 6 || s.Buckets[0].HighSeqnoSum != 5 ||
		s.Buckets[0].Items != 2 {
		t.Fatalf("status %+v", s)
	}
}
