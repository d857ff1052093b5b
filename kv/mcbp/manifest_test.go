package mcbp

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// TestManifest checks that manifests of engines, with fields of later versions, are decoded, and encoded in the same
// form.
func TestManifest(t *testing.T) {
	raw := `{"uid":"1f","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"}]},
		{"name":"s","uid":"8","collections":[{"name":"c","uid":"9","maxTTL":4,"history":true},
		{"name":"d","uid":"a","flush_uid":"1e"}]}]}`
	want := Manifest{UID: 0x1f, Scopes: []Scope{{Name: "_default", Collections: []Collection{{Name: "_default"}}},
		{Name: "s", ID: 8, Collections: []Collection{{Name: "c", ID: 9}, {Name: "d", ID: 10, Flushed: 0x1e}}}}}
	var got, again Manifest
	if err := json.Unmarshal([]byte(raw), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
	out, err := json.Marshal(got)
	if err != nil || json.Unmarshal(out, &again) != nil || !reflect.DeepEqual(again, want) {
		t.Errorf("%s, %v", out, err)
	}
	for field, bad := range map[string]string{`"uid":"1f"`: `"uid":"x"`, `"flush_uid":"1e"`: `"flush_uid":"-1"`,
		`"uid":"a"`: `"uid":"100000000"`} {
		if err := json.Unmarshal([]byte(strings.Replace(raw, field, bad, 1)), &got); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
