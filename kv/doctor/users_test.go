package doctor_test

import (
	"testing"

	"tidemark/kv"
	"tidemark/kv/access"
	"tidemark/kv/clustermap"
	"tidemark/kv/doctor"
)

// TestRights checks that users with the roles in docs/couchbase.md have all rights, and that missing rights of others
// are named.
func TestRights(t *testing.T) {
	n := node(t, func(*kv.Config) {})
	a := kv.NewAdmin([]string{n.AdminAddr()}, "u", "p", nil)
	const password = "index-secret"
	for _, tt := range []struct {
		roles string
		fails bool
		want  []string
	}{
		{"data_dcp_reader[b],data_monitoring[b]", false, []string{"reads ok: refused, but not needed", "dcp ok: opened",
			"statistics ok: ", "login ok: SCRAM-SHA512"}},
		{"data_dcp_reader[*]", false, []string{"dcp ok: opened", "seqnos ok: ", "statistics warning: NO_ACCESS"}},
		{"bucket_full_access[b]", false, []string{"dcp ok: opened", "reads ok: permitted",
			"statistics warning: NO_ACCESS"}},
		{"data_reader[b],data_monitoring[b]", true, []string{"dcp will not work: DCP cannot be opened: ",
			"reads ok: permitted"}},
		{"data_dcp_reader[b:_default],data_monitoring[b]", true, []string{"dcp will not work: ", "statistics ok: "}},
		{"", true, []string{"login will not work: "}},
	} {
		t.Run(tt.roles, func(t *testing.T) {
			roles, err := access.ParseRoles(tt.roles)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.ChangeUser(t.Context(), clustermap.UserChange{User: "index", Roles: &roles}, password); err != nil {
				t.Fatal(err)
			}
			o := options(n.MemcachedAddr())
			o.KV.User, o.KV.Password = "index", password
			r := doctor.Examine(t.Context(), o)
			expect(t, r, tt.want...)
			if err := r.Err(); (err != nil) != tt.fails {
				t.Errorf("%v", err)
			}
		})
	}
}
