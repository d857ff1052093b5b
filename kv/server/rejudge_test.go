package server

import (
	"fmt"
	"testing"

	"tidemark/internal/testing/raced"
	"tidemark/kv/access"
	"tidemark/kv/mcbp"
)

// world returns a directory with one user with a role for scope s of bucket w, which has the given number of
// collections, from id 9 on; uid is the manifest uid of another bucket.
func world(collections int, role string, uid uint64) *access.Directory {
	m := &mcbp.Manifest{UID: uint64(collections), Scopes: []mcbp.Scope{{Name: mcbp.DefaultName}, {Name: "s", ID: 8}}}
	for i := range collections {
		m.Scopes[1].Collections = append(m.Scopes[1].Collections,
			mcbp.Collection{Name: fmt.Sprint("c", i), ID: uint32(9 + i)})
	}
	roles, err := access.ParseRoles(role)
	if err != nil {
		panic(err)
	}
	return access.NewDirectory(access.Kept{Users: []access.User{{ID: "u", Roles: roles}},
		Buckets: map[string]access.Bucket{"w": {Manifest: m}, "x": {Manifest: &mcbp.Manifest{UID: uid}}}})
}

// streamsOf returns streams of one connection of user u in bucket w, each for the given collections; set changes the
// present users.
func streamsOf(streams, collections int) (all []*stream, set func(*access.Directory)) {
	var now *access.Directory
	srv := &Server{auth: &authenticator{}, opts: Options{Users: func() *access.Directory { return now }}}
	p := newProducer(&conn{srv: srv, user: "u", bucketName: "w"}, "consumer", 0)
	ids := make([]uint32, 0, collections)
	for i := range collections {
		ids = append(ids, uint32(9+i))
	}
	for range streams {
		all = append(all, &stream{p: p, grant: grant{asked: request{ids: ids}}})
	}
	return all, func(d *access.Directory) { now = d }
}

// The rights of a user are computed once for all streams of a connection, and not again unless something relevant has
// changed.
func TestRightsOfStreamsAreJudgedOnce(t *testing.T) {
	if raced.On {
		t.Skip("it counts allocations")
	}
	const streams, collections = 64, 200
	judge := func(n int, role string, uids ...uint64) float64 {
		all, set := streamsOf(n, collections)
		var ds []*access.Directory
		for range 2 { // repeated once the cache is warm
			for _, uid := range uids {
				ds = append(ds, world(collections, role, uid))
			}
		}
		return testing.AllocsPerRun(1, func() {
			for range uids {
				set(ds[0])
				ds = ds[1:]
				for _, st := range all {
					if st.lost() {
						t.Fatal("a right is lost")
					}
				}
			}
		})
	}
	for _, role := range []string{"data_dcp_reader[w:s]", "data_dcp_reader[w]"} {
		one, many := judge(1, role, 1), judge(streams, role, 1)
		if many > one+8 {
			t.Errorf("%s: judging %d streams allocates %v times, one %v times", role, streams, many, one)
		}
		if again := judge(streams, role, 1, 2, 3, 4); again > one+8 {
			t.Errorf("%s: changes of another bucket allocate %v times, one judgement %v times", role, again, one)
		}
	}
}

// Each stream follows the newest users nevertheless, in whichever order they are checked.
func TestRightsOfStreamsFollow(t *testing.T) {
	all, set := streamsOf(3, 2)
	for i, tc := range []struct {
		users *access.Directory
		lost  bool
	}{
		{world(2, "data_dcp_reader[w:s]", 1), false},
		{world(2, "data_dcp_reader[w:s:c0]", 1), true},
		{world(1, "data_dcp_reader[w:s:c0]", 1), false}, // c1 was dropped
		{world(2, "data_dcp_reader[w]", 2), false},
		{world(2, "data_reader[w]", 2), true},
		{world(2, "", 1), true},
	} {
		set(tc.users)
		for j, st := range all {
			if got := st.lost(); got != tc.lost {
				t.Errorf("users %d, stream %d: lost %v, want %v", i, j, got, tc.lost)
			}
			if st.lost() && !tc.lost {
				t.Errorf("users %d, stream %d: lost when it is looked at again", i, j)
			}
		}
	}
}

// BenchmarkRejudge measures one change of a bucket's collections for the streams of one connection.
func BenchmarkRejudge(b *testing.B) {
	const streams, collections = 1024, 999
	all, set := streamsOf(streams, collections)
	d := [2]*access.Directory{world(collections, "data_dcp_reader[w:s]", 1),
		world(collections, "data_dcp_reader[w:s],data_reader[w]", 1)}
	for i := 0; b.Loop(); i++ {
		set(d[i%2])
		for _, st := range all {
			st.lost()
		}
	}
}
