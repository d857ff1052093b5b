package ingest

import (
	"encoding/binary"
	"fmt"

	"tidemark/timestamp"
)

// maxLogs is the number of different failover logs kept per vbucket: one per branch that some checkpoint may still be
// on.
const maxLogs = 8

// LogBook remembers, per vbucket, the failover logs seen and the newest vbucket map revision, so that a stored position
// (which names its branch by vbuuid only) gets the history of its branch back after a restart.
type LogBook struct {
	vbs     []bookEntry
	changed bool
}

type bookEntry struct {
	rev  timestamp.MapRevision
	logs []timestamp.FailoverLog // newest last
}

// NewLogBook gives an empty book for n vbuckets.
func NewLogBook(n int) *LogBook { return &LogBook{vbs: make([]bookEntry, n)} }

// Of gives the history of the branch vbuuid: the part of a known log that begins with it, or, when none is known, the
// branch alone. Branch 0 (nothing held) has none.
func (k *LogBook) Of(vb int, vbuuid uint64) timestamp.FailoverLog {
	if vbuuid == 0 {
		return nil
	}
	logs := k.vbs[vb].logs
	for i := len(logs) - 1; i >= 0; i-- {
		for j, e := range logs[i] {
			if e.VBUUID == vbuuid {
				return logs[i][j:]
			}
		}
	}
	return timestamp.FailoverLog{{VBUUID: vbuuid}}
}

// Revision gives the newest map revision seen with a log of the vbucket.
func (k *LogBook) Revision(vb int) timestamp.MapRevision { return k.vbs[vb].rev }

// add notes a log. A log that another one begins with is replaced by it.
func (k *LogBook) add(vb int, l timestamp.FailoverLog, rev timestamp.MapRevision) {
	e := &k.vbs[vb]
	if rev.Compare(e.rev) > 0 {
		e.rev, k.changed = rev, true
	}
	if n := len(e.logs); len(l) == 0 || n > 0 && e.logs[n-1].Equal(l) {
		return
	}
	k.changed = true
	kept := e.logs[:0]
	for _, o := range e.logs {
		if !endsWith(l, o) {
			kept = append(kept, o)
		}
	}
	if len(kept) == maxLogs {
		kept = append(kept[:0], kept[1:]...)
	}
	e.logs = append(kept, l.Clone())
}

func endsWith(l, old timestamp.FailoverLog) bool {
	return len(l) >= len(old) && l[len(l)-len(old):].Equal(old)
}

// Changed tells whether the book differs from what was last encoded.
func (k *LogBook) Changed() bool { return k.changed }

const bookFormat = 1

// Encode gives the stored form and marks the book unchanged.
func (k *LogBook) Encode() []byte {
	dst := append([]byte(nil), bookFormat)
	dst = binary.AppendUvarint(dst, uint64(len(k.vbs)))
	for _, e := range k.vbs {
		dst = binary.AppendUvarint(dst, e.rev.Epoch)
		dst = binary.AppendUvarint(dst, e.rev.Rev)
		dst = binary.AppendUvarint(dst, uint64(len(e.logs)))
		for _, l := range e.logs {
			dst = timestamp.AppendLog(dst, l)
		}
	}
	k.changed = false
	return dst
}

// DecodeLogBook reads what Encode wrote. Errors wrap ErrPosition.
func DecodeLogBook(src []byte) (*LogBook, error) {
	bad := func(what string) (*LogBook, error) {
		return nil, fmt.Errorf("%w: failover logs: %s", ErrPosition, what)
	}
	if len(src) == 0 || src[0] != bookFormat {
		return bad("unknown format")
	}
	src = src[1:]
	short := false
	next := func() uint64 {
		u, n := binary.Uvarint(src)
		if n <= 0 {
			short, src = true, nil
			return 0
		}
		src = src[n:]
		return u
	}
	n := next()
	if short || n == 0 || n > timestamp.MaxVBuckets {
		return bad("number of vbuckets")
	}
	k := NewLogBook(int(n))
	for v := range k.vbs {
		e := &k.vbs[v]
		e.rev = timestamp.MapRevision{Epoch: next(), Rev: next()}
		count := next()
		if short || count > maxLogs {
			return bad("truncated")
		}
		for range count {
			l, rest, err := timestamp.DecodeLog(src)
			if err != nil {
				return nil, fmt.Errorf("failover logs: %w", err)
			}
			src = rest
			e.logs = append(e.logs, l)
		}
	}
	if len(src) != 0 {
		return bad("bytes after the end")
	}
	return k, nil
}

// newest gives the newest branch known, 0 for none.
func (k *LogBook) newest(vb int) uint64 {
	if l := k.vbs[vb].logs; len(l) > 0 {
		return l[len(l)-1].Newest()
	}
	return 0
}
