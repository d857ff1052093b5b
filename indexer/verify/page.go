package verify

import (
	"context"
	"hash/maphash"
)

// maxVerifyPages bounds the pages into which the documents of one vbucket are divided.
const maxVerifyPages = 1 << 10

var pageSeed = maphash.MakeSeed()

// page is one of `of` equal parts of a vbucket's documents, by a hash of their ids. It is compared at a time when the
// vbucket has too many documents for the memory. The zero value has all documents.
type page struct{ n, of uint64 }

func (p page) has(docID []byte) bool { return p.of <= 1 || maphash.Bytes(pageSeed, docID)%p.of == p.n }

// last reports whether the page cannot be divided any further.
func (p page) last() bool { return p.of >= maxVerifyPages }

// halves divides the page.
func (p page) halves() [2]page {
	of := max(p.of, 1)
	return [2]page{{p.n, 2 * of}, {p.n + of, 2 * of}}
}

// halves compares vbuckets, half of the current page at a time. KV is read once for each half, so that memory is
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
