package projector

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"tidemark/keyversion"
	"tidemark/kv"
	"tidemark/kv/access"
	"tidemark/kv/clustermap"
)

// The role that docs/couchbase.md names is sufficient for a projector, by node and by cluster manager, with either
// feed; its streams end when the role is revoked, and begin again when it is granted.
func TestByManagerWithOneRole(t *testing.T) {
	for _, kind := range []FeedKind{FeedNative, FeedGocbcore} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			m := newManagedKV(t)
			admin := kv.NewAdmin([]string{m.conf.Admin}, "u", "secret", nil)
			grant := func(text string) {
				t.Helper()
				roles, err := access.ParseRoles(text)
				if err != nil {
					t.Fatal(err)
				}
				c := clustermap.UserChange{User: "index", Roles: &roles}
				if err := admin.ChangeUser(t.Context(), c, "index-secret"); err != nil {
					t.Fatal(err)
				}
			}
			grant("data_dcp_reader[" + testBucket + "]")
			w := newWorldWith(t, m.conf.Admin, kind, func(c *Config) {
				c.KVManager, c.User, c.Password = c.KV, "index", "index-secret"
			})
			w.define(1, 1)
			w.untilBegun()
			w.row(m, "a", "x")

			ends := len(w.data.kinds(keyversion.StreamEnd))
			grant("data_reader[" + testBucket + "]")
			w.eventually("END of every vbucket", func() bool {
				return len(w.data.kinds(keyversion.StreamEnd)) >= ends+vbuckets
			})
			w.eventually("the right is missed", func() bool {
				w.counter += 10
				reply, err := w.client.Streams(context.Background(), w.url, w.request(w.counter, allVBuckets()...))
				return err != nil && strings.Contains(err.Error(), "right") ||
					err == nil && strings.Contains(fmt.Sprint(reply.Buckets[0]), "right")
			})
			grant("data_dcp_reader[*]")
			w.untilBegun()
			w.row(m, "b", "y")
		})
	}
}
