package verify

import (
	"context"
	"hash/maphash"
)

// maxVerifyPages is among how many pages the documents of one vbucket are divided at most.
const maxVerifyPages = 1 << 10

var pageSeed = maphash.MakeSeed()

// page is the documents that are compared at a time where those of one vbucket are too many to be held in memory: of so
// many equal parts, by a hash of their ids, one. The zero value is all of them.
type page struct{ n, of uint64 }

func (p page) has(docID []byte) bool { return p.of <= 1 || maphash.Bytes(pageSeed, docID)%p.of == p.n }

// last reports whether it cannot be divided any more.
func (p page) last() bool { return p.of >= maxVerifyPages }

// halves divides it.
func (p page) halves() [2]page {
	of := max(p.of, 1)
	return [2]page{{p.n, 2 * of}, {p.n + of, 2 * of}}
}

// halves compares vbuckets, half of the present page at a time. KV is read once for each: what is held in memory is
// bounded, whatever a vbucket holds.
func (v *verification) halves(ctx context.Context, vbs []uint16) error {
	whole := v.page
	defer func() { v.page = whole }()
	for _, half := range whole.halves() {
		v.page = half
		if err := v.group(ctx, vbs); err != nil {
			return err
		}
	}
	return nil
}
