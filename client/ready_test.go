package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/index"
)

// TestWaitReadyRequestsOnlyItsIndexes: only the awaited indexes are requested, in runs; while an event stream reports
// their changes, this happens once a second, and when one of them has changed.
func TestWaitReadyRequestsOnlyItsIndexes(t *testing.T) {
	const ready = 10*time.Second + 5*pollEvery // in the middle between two polls
	runs := []string{"after=4&limit=4", "after=18999&limit=1"}
	for _, tc := range []struct {
		name   string
		stream bool
		least  int // polls
		most   int
	}{
		{"with events", true, 10, 13},
		{"without events", false, 100, 107},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var requests []string
				since := ""
				event := func(w io.Writer, cas, id int) {
					fmt.Fprintf(w, "id: %d@c.1\nevent: change\n"+
						"data: {\"cas\":%d,\"events\":[{\"kind\":\"index\",\"index\":\"%d\"}]}\n\n", cas, cas, id)
				}
				events := inBubble(func(ctx context.Context, _ int, w io.Writer) {
					for cas := 71; ctx.Err() == nil; cas++ {
						id := 3 // of an index that is not awaited
						if time.Since(began) >= ready {
							id = 6
						}
						event(w, cas, id)
						sleep(ctx, pollEvery/2)
					}
				})
				c := newVirtual(t, func(r *http.Request) (*http.Response, error) {
					switch {
					case r.URL.Path == "/v1/events" && tc.stream:
						since = r.URL.Query().Get("since")
						return events(r)
					case r.URL.Path != "/v1/indexes":
						return nil, errors.New("no such call")
					}
					requests = append(requests, r.URL.RawQuery)
					return answerOf("application/json", pageFor(r, time.Since(began) >= ready)), nil
				}, "http://m")
				if err := c.WaitReady(t.Context(), []index.ID{19_000, 7, 5, 8, 6, 7}, nil); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > ready+pollEvery {
					t.Errorf("it took %v, want %v", took, ready)
				}
				for poll := range slices.Chunk(requests, len(runs)) {
					if !slices.Equal(poll, runs) {
						t.Fatalf("requested %q, want %q", poll, runs)
					}
				}
				if n := len(requests) / len(runs); n < tc.least || n > tc.most {
					t.Errorf("%d polls in %v, want %d to %d", n, ready, tc.least, tc.most)
				}
				if tc.stream && since != "70" {
					t.Errorf("events since %q, want those after the first poll, 70", since)
				}
			})
		})
	}
}

// pageFor returns a page of a list without gaps, as of cas 70.
func pageFor(r *http.Request, ready bool) io.Reader {
	after, _ := strconv.Atoi(r.URL.Query().Get("after"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	state := "backfill"
	if ready {
		state = "ready"
	}
	var all []string
	for id := after + 1; id <= after+limit; id++ {
		all = append(all, fmt.Sprintf(`{"id":"%d","state":"%s"}`, id, state))
	}
	return strings.NewReader(fmt.Sprintf(`{"cas":70,"indexes":[%s]}`, strings.Join(all, ",")))
}

// TestWaitReadyReportsAStall: a build that waits for long is reported with the reason, and again while that lasts, but
// not a wait that is soon over.
func TestWaitReadyReportsAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c := newVirtual(t, func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != "/v1/indexes" {
				return nil, errors.New("no such call")
			}
			state, waits := "backfill", `["KV node k1 is away"]`
			switch at := time.Since(began); {
			case at > 3*time.Second && at < 4*time.Second:
				waits = "[]"
			case at > 100*time.Second:
				state = "ready"
			}
			return answerOf("application/json", strings.NewReader(fmt.Sprintf(
				`{"indexes":[{"id":"1","name":"n","bucket":"b","state":%q,"waiting_for":%s}]}`, state, waits))), nil
		}, "http://m")
		var reports []string
		c.Stalled = func(why string) {
			reports = append(reports, fmt.Sprint(time.Since(began).Round(time.Second), " ", why))
		}
		if err := c.WaitReady(t.Context(), []index.ID{1}, nil); err != nil {
			t.Fatal(err)
		}
		const why = " index n on b is waiting: KV node k1 is away"
		if want := []string{"9s" + why, "1m9s" + why}; !slices.Equal(reports, want) {
			t.Errorf("%q, want %q", reports, want)
		}
	})
}
