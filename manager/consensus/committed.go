package consensus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// committed is the record of the newest entries that this server has seen committed, in a small file beside the log,
// since the library keeps no commit index on disk. A record is in the page cache before the effects of the entry can be
// seen, and survives the process; it is synced only at an orderly stop, so that a power loss may take back the last
// half minute of it. An older record is true, too: what was committed stays committed.
//
// Each kind of writer has a place of its own in the file, and in memory, so that writers need no lock.
type committed struct {
	disk *disk
	log  hclog.Logger
	id   string      // of the server: a record of another one is ignored
	to   io.WriterAt // file, but for a test of a disk that hangs
	file *os.File

	ends    [noters]atomic.Pointer[position]
	failing atomic.Bool // the newest write has failed
}

// The writers of records: each has a place in the file.
const (
	byMachine = iota // the goroutine that applies entries
	byMembers        // a change of members, of which there is one at a time
	byClose          // the orderly stop
	noters
)

const (
	// placeBytes is the distance of two places: a disk writes a sector of this size whole.
	placeBytes = 512
	// recordBytes is the length of a record: magic, index, term and checksum.
	recordBytes = 4 + 8 + 8 + 4
	recordMagic = "TMC1"
)

// openCommitted opens the file and reads what it has; torn is what could not be used of it. The file is created if
// there is none: a disk that is full has no room for the first record only when that is written.
func openCommitted(path, id string, d *disk, log hclog.Logger) (c *committed, torn error, err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	c = &committed{disk: d, log: log, id: id, to: file, file: file}
	content := make([]byte, noters*placeBytes)
	n, err := io.ReadFull(file, content)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, nil, errors.Join(err, file.Close())
	}
	for i := range c.ends {
		p, e := decodeRecord(content[min(n, i*placeBytes):min(n, i*placeBytes+recordBytes)], id)
		c.ends[i].Store(&p)
		if e != nil {
			torn = errors.Join(torn, fmt.Errorf("%s: place %d: %w", path, i, e))
		}
	}
	return c, torn, nil
}

// end returns the newest entry that is recorded as committed; index 0: none is.
func (c *committed) end() (newest position) {
	for i := range c.ends {
		if p := *c.ends[i].Load(); p.index > newest.index {
			newest = p
		}
	}
	return newest
}

// note records that an entry is committed. It does not wait for the disk unless the system makes a write to the page
// cache wait; then the disk counts as hung. A failed write costs knowledge after a restart only, and is made up for by
// the next one.
func (c *committed) note(place int, p position) {
	if p.index <= c.ends[place].Load().index {
		return // applied again after a restart
	}
	c.ends[place].Store(&p)
	err := c.disk.brief(func() error {
		_, err := c.to.WriteAt(encodeRecord(p, c.id), int64(place*placeBytes))
		return err
	})
	if failed := err != nil; c.failing.Swap(failed) != failed && failed {
		c.log.Warn("what is committed cannot be noted; until it can, a restart forgets it", "file", c.file.Name(),
			"error", err)
	}
}

// close syncs and closes the file. It waits endPatience at the longest for a disk that hangs.
func (c *committed) close() error {
	done := make(chan error, 1)
	go func() { done <- errors.Join(c.file.Sync(), c.file.Close()) }()
	late := time.NewTimer(endPatience)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return fmt.Errorf("%s is not synced after %v: a power loss may take back the last half minute of it", c.file.Name(),
			endPatience)
	}
}

func encodeRecord(p position, id string) []byte {
	b := append(make([]byte, 0, recordBytes), recordMagic...)
	b = binary.LittleEndian.AppendUint64(b, p.index)
	b = binary.LittleEndian.AppendUint64(b, p.term)
	return binary.LittleEndian.AppendUint32(b, recordSum(b, id))
}

func recordSum(b []byte, id string) uint32 {
	return crc32.Update(crc32.Checksum([]byte(id), castagnoli), castagnoli, b)
}

// decodeRecord returns the record in b; none if b is empty or has only zeros, which is how a place is before its first
// record.
func decodeRecord(b []byte, id string) (p position, err error) {
	if len(bytes.Trim(b, "\x00")) == 0 {
		return position{}, nil
	}
	if len(b) < recordBytes || string(b[:4]) != recordMagic {
		return position{}, fmt.Errorf("%w: %x is no record", ErrDamaged, b)
	}
	p = position{index: binary.LittleEndian.Uint64(b[4:]), term: binary.LittleEndian.Uint64(b[12:])}
	if got, want := recordSum(b[:20], id), binary.LittleEndian.Uint32(b[20:]); got != want {
		return position{}, fmt.Errorf("%w: checksum %08x, want %08x: torn, or of another server", ErrDamaged, got, want)
	}
	return p, nil
}

// openCommitted opens the record and compares it with the log: a log that lacks what was committed here is not the one
// that this server had, and the server must not vote with it.
func (st *storage) openCommitted() error {
	path := st.cfg.committed()
	c, unread, err := openCommitted(path, string(st.id), st.disk, st.cfg.Logger)
	if err != nil {
		return err
	}
	st.store.committed = c
	last, err := st.logs.LastIndex()
	if err != nil {
		return err
	}
	end, snapshot := c.end(), st.snaps.end()
	switch {
	case unread != nil:
		st.cfg.Logger.Warn("the record of what is committed cannot be read, and begins anew", "error", unread)
	case end.index == 0 && max(last, snapshot.index) > 0:
		st.cfg.Logger.Info("there is no record of what is committed; it begins now", "file", path)
	}
	var own raft.Log
	found := st.logs.GetLog(end.index, &own) == nil
	switch {
	case end.index > max(last, snapshot.index):
		err = fmt.Errorf("the log ends at entry %d", max(last, snapshot.index))
	case found && own.Term != end.term:
		err = fmt.Errorf("the log has one of term %d there", own.Term)
	case !together(end, snapshot):
		err = fmt.Errorf("the newest state snapshot ends at entry %d of term %d", snapshot.index, snapshot.term)
	default:
		return nil
	}
	return fmt.Errorf("%w: %s says that entry %d of term %d was committed here, and %w: the files are not of one time, "+
		"or a program without that record has replaced the entry; "+damageAdvice+" or, if the log is all that there is, "+
		"delete %s and see \"A majority of managers is lost\" in docs/operations.md", ErrDamaged, path, end.index, end.term,
		err, st.cfg.Dir, path)
}
