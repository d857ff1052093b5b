package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/manager/coordinator/core"
	"tidemark/statecontext"
	"tidemark/streams"
)

// TestPageOfStreamsRequestsItsBuckets checks that all pages of a listing together request each bucket's view about
// once, and that each page counts the streams of every bucket.
func TestPageOfStreamsRequestsItsBuckets(t *testing.T) {
	const many, vbuckets, limit = 20, 64, 100
	var buckets []*statecontext.Bucket
	now := &core.Status{}
	for i := range many {
		b := &statecontext.Bucket{Name: fmt.Sprintf("b%02d", i), VBuckets: vbuckets}
		buckets = append(buckets, b)
		now.Buckets = append(now.Buckets, core.BucketStatus{Name: b.Name, Wanted: true,
			Streams: streams.Summary{Begun: vbuckets}})
	}
	asked, pages := 0, 0
	var all []string
	for after := ""; ; {
		first, from, err := streamsAfter(after)
		if err != nil {
			t.Fatal(err)
		}
		page := streamPage{first: first, from: from, limit: limit}
		list, err := page.list(slices.Values(buckets), now, func(bucket string) (core.BucketView, bool, error) {
			asked++
			return core.BucketView{Name: bucket, Wanted: true, Entries: make([]streams.Entry, vbuckets),
				Summary: streams.Summary{Begun: vbuckets}}, true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		pages++
		for _, s := range list.Streams {
			all = append(all, fmt.Sprintf("%s/%d", s.Bucket, s.VBucket))
		}
		if len(list.Buckets) != many {
			t.Fatalf("page %d has %d buckets", pages, len(list.Buckets))
		}
		for _, b := range list.Buckets {
			if !b.Wanted || b.Begun != vbuckets {
				t.Errorf("page %d: %+v", pages, b)
			}
		}
		if after = list.Next; after == "" {
			break
		}
	}
	if most := many + pages; asked > most {
		t.Errorf("%d questions to the leader for %d pages of %d buckets", asked, pages, many)
	}
	if len(all) != many*vbuckets || all[len(all)-1] != "b19/63" || !slices.IsSortedFunc(all, func(a, b string) int {
		return strings.Compare(a[:3], b[:3])
	}) {
		t.Errorf("%d streams, the last is %s", len(all), all[len(all)-1])
	}
}

// TestStreamsAfter checks that a page begins after the given vbucket, and that vbuckets out of range are rejected.
func TestStreamsAfter(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "|0",
		"b/0":                   "b|1",
		"a/b/4095":              "a/b|4096",
		"b/4096":                string(errcode.BadRequest),
		"b/9223372036854775807": string(errcode.BadRequest),
		"b/-1":                  string(errcode.BadRequest),
		"b/x":                   string(errcode.BadRequest),
		"b":                     string(errcode.BadRequest),
	} {
		bucket, from, err := streamsAfter(text)
		got := fmt.Sprintf("%s|%d", bucket, from)
		if p := (*rpc.Problem)(nil); errors.As(err, &p) {
			got = string(p.Code)
		}
		if got != want {
			t.Errorf("after=%s: %s, want %s", text, got, want)
		}
	}
}
