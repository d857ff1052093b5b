package store

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tidemark/kv/seglog"
)

const (
	// retryAfterFailure is how long writes are refused after a failed write before the disk is tried again.
	retryAfterFailure = 200 * time.Millisecond
	// firstBatchBytes is the initial size of a batch's buffer; keepBatchBytes is the size of the largest buffer kept for
	// reuse.
	firstBatchBytes = 64 << 10
	keepBatchBytes  = 4 << 20
)

// Ticket represents records on their way to the log. A nil Ticket means that they are in the log.
type Ticket struct {
	c     *committer
	buf   []byte
	lsn   uint64 // of its last record
	owes  int64  // bytes of it that count as waiting to be written
	recs  []pending
	touch []touched
	done  chan struct{}
	err   error // set before done is closed
}

// pending is a document in a ticket with what it replaced, so that it can be taken back.
type pending struct {
	vb        *VBucket
	doc, prev *Doc
	high      uint64 // the vbucket's high seqno before it
}

// touched is the highest seqno that a ticket adds to a vbucket.
type touched struct {
	vb   *VBucket
	high uint64
}

// Wait waits until the ticket's records have been passed to the operating system, so that they survive the death of
// the process; it writes them itself if no other goroutine does. If it returns an error (ErrTemporary), none of the
// records was stored, and all are taken back.
func (t *Ticket) Wait() error {
	if t == nil {
		return nil
	}
	select {
	case <-t.done:
	default:
		t.c.flush(t)
	}
	return t.err
}

// Size returns the number of bytes waiting in the ticket.
func (t *Ticket) Size() int {
	if t == nil {
		return 0
	}
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	return len(t.buf)
}

// addLocked replaces the records by more, which begin with them.
func (t *Ticket) addLocked(more []byte) {
	t.c.space.waiting.Add(int64(len(more) - len(t.buf)))
	t.owes += int64(len(more) - len(t.buf))
	t.buf = more
}

// settleLocked no longer counts the records as waiting to be written.
func (t *Ticket) settleLocked() {
	t.c.space.waiting.Add(-t.owes)
	t.owes = 0
}

// committer is the group commit of a bucket: appenders fill the current ticket, and the first goroutine that waits
// writes it for all. Lock order: writeMu, then a vbucket's lock, then mu.
type committer struct {
	log     *seglog.Log
	space   *space
	now     func() time.Time
	onWrite func(bytes int, took time.Duration, err error)
	writing pendingSince

	writeMu sync.Mutex // held by the goroutine that writes

	mu       sync.Mutex
	cur      *Ticket
	flying   *Ticket // being written
	lsn      uint64  // of the last record appended
	refuse   error   // set while appends are refused
	retryAt  time.Time
	unsynced error // set while documents are refused because the log may not be on disk
	spare    []byte

	written  atomic.Uint64 // lsn up to which everything not taken back is in the log
	failures atomic.Uint64 // number of writes that were taken back
}

func newCommitter(log *seglog.Log, space *space, now func() time.Time) *committer {
	c := &committer{log: log, space: space, now: now}
	c.cur = c.newTicket()
	return c
}

func (c *committer) newTicket() *Ticket {
	buf := c.spare
	c.spare = nil
	if buf == nil {
		buf = make([]byte, 0, firstBatchBytes)
	}
	return &Ticket{c: c, buf: buf[:0], done: make(chan struct{})}
}

// appendDoc adds a document version to the current ticket. The caller holds vb's lock and installs the document only
// if this succeeds.
func (c *committer) appendDoc(vb *VBucket, doc, prev *Doc) (*Ticket, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refusedLocked(); err != nil {
		return nil, err
	}
	if c.unsynced != nil {
		return nil, c.unsynced
	}
	t := c.cur
	if err := c.space.refuses(doc.Deleted || doc.Collection == SystemCollection, doc.recordBytes(),
		int64(len(t.buf))); err != nil {
		return nil, err
	}
	t.addLocked(appendDoc(t.buf, vb.id, doc))
	c.lsn++
	doc.lsn, t.lsn = c.lsn, c.lsn
	t.recs = append(t.recs, pending{vb: vb, doc: doc, prev: prev, high: vb.high})
	if i := vb.touch; i < len(t.touch) && t.touch[i].vb == vb {
		t.touch[i].high = doc.Seqno
	} else {
		vb.touch = len(t.touch)
		t.touch = append(t.touch, touched{vb: vb, high: doc.Seqno})
	}
	return t, nil
}

// appendCopy adds records that change nothing in memory (a relocation, a vbucket state).
func (c *committer) appendCopy(encode func(dst []byte) []byte) (*Ticket, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refusedLocked(); err != nil {
		return nil, err
	}
	c.cur.addLocked(encode(c.cur.buf))
	return c.cur, nil
}

// setUnsynced makes the committer refuse new documents because a sync of the log has failed; nil makes it accept them
// again.
func (c *committer) setUnsynced(err error) {
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrTemporary, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsynced = err
}

func (c *committer) refusedLocked() error {
	if c.refuse == nil {
		return nil
	}
	if !c.retryAt.IsZero() && !c.now().Before(c.retryAt) {
		c.refuse = nil // let this append try the disk
		return nil
	}
	return c.refuse
}

// pendingTicket returns the ticket with the record at lsn, nil if the record is in the log. The caller holds the lock
// of the vbucket in which it found the record's document.
func (c *committer) pendingTicket(lsn uint64) *Ticket {
	if lsn <= c.written.Load() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flying != nil && lsn <= c.flying.lsn {
		return c.flying
	}
	if lsn <= c.written.Load() {
		return nil
	}
	return c.cur
}

// appended returns how many versions of documents have been appended.
func (c *committer) appended() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lsn
}

// current returns the ticket being filled; waiting for it waits for everything appended so far.
func (c *committer) current() *Ticket {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cur
}

// flush writes tickets until t is done.
func (c *committer) flush(t *Ticket) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	select {
	case <-t.done:
		return
	default:
	}
	c.mu.Lock()
	c.flying = c.cur // tickets are written in order, so t is the current one
	c.cur = c.newTicket()
	c.mu.Unlock()
	started := c.now()
	c.writing.begin(started)
	_, err := c.log.Write(t.buf)
	c.writing.end()
	c.space.took(int64(len(t.buf)), err)
	c.space.fit(c.log.Largest())
	if c.onWrite != nil {
		c.onWrite(len(t.buf), c.now().Sub(started), err)
	}
	if err != nil {
		c.takeBack(err)
		return
	}
	c.publish(t)
}

// since returns a function that waits for everything appended from now on up to the ticket last. Waiting for last
// alone is not enough: tickets before it may have failed and been taken back.
func (c *committer) since() (stored func(last *Ticket) error) {
	failures := c.failures.Load()
	return func(last *Ticket) error {
		if err := last.Wait(); err != nil {
			return err
		}
		if c.failures.Load() != failures {
			return fmt.Errorf("%w: a write failed meanwhile", ErrTemporary)
		}
		return nil
	}
}

// settle no longer counts anything as waiting to be written: the bucket is given up.
func (c *committer) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cur.settleLocked()
	if c.flying != nil {
		c.flying.settleLocked()
	}
}

// publish makes a written ticket visible to streams and wakes its waiters.
func (c *committer) publish(t *Ticket) {
	for _, x := range t.touch {
		x.vb.publish(x.high)
	}
	c.mu.Lock()
	if t.lsn > 0 {
		c.written.Store(t.lsn)
	}
	c.flying = nil
	if cap(t.buf) <= keepBatchBytes && c.spare == nil {
		c.spare = t.buf
	}
	t.settleLocked()
	t.buf, t.recs, t.touch = nil, nil, nil
	c.mu.Unlock()
	close(t.done)
}

// takeBack undoes everything that is not in the log, newest first, and refuses new records for a while. Nothing of it
// was visible yet: replies and streams wait for the log.
func (c *committer) takeBack(cause error) {
	c.mu.Lock()
	c.failures.Add(1) // under the lock, so that since sees a failure that hits later appends
	failed := []*Ticket{c.flying, c.cur}
	c.refuse = fmt.Errorf("%w: %w", ErrTemporary, cause)
	c.retryAt = time.Time{}
	c.mu.Unlock()
	for i := len(failed) - 1; i >= 0; i-- {
		recs := failed[i].recs
		for j := len(recs) - 1; j >= 0; j-- {
			recs[j].vb.undo(recs[j].doc, recs[j].prev, recs[j].high)
		}
	}
	c.mu.Lock()
	err := c.refuse
	c.cur = c.newTicket()
	c.flying = nil
	c.written.Store(c.lsn)
	c.retryAt = c.now().Add(retryAfterFailure)
	for _, t := range failed {
		t.settleLocked()
		t.buf, t.recs, t.touch = nil, nil, nil
		t.err = err
		close(t.done)
	}
	c.mu.Unlock()
}
