package oracle

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"tidemark/expression"
)

var docs = map[string][]byte{
	"a": []byte(`{"kind":"airport","iso_country":"FR","name":"Orly","elevation_ft":291,"scheduled_service":true}`),
	"b": []byte(`{"kind":"airport","iso_country":"FR","elevation_ft":291.5,"scheduled_service":true}`),
	"c": []byte(`{"kind":"airport","name":"Nowhere","elevation_ft":"low","scheduled_service":true}`),
	"d": []byte(`{"kind":"country","name":"France","elevation_ft":1,"scheduled_service":true}`),
	"e": []byte(`{"kind":"airport","iso_country":"DE","name":null,"elevation_ft":291,"scheduled_service":true}`),
}

func ids(t *testing.T, name string) string {
	t.Helper()
	rows, err := Rows(name, docs)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, r := range rows {
		all = append(all, r.ID)
	}
	return strings.Join(all, " ")
}

func TestRows(t *testing.T) {
	for name, want := range map[string]string{
		"world_ids":             "a b c d e",
		"airports_by_country":   "e b a", // MISSING before "Orly"
		"places_by_name":        "e d c a",
		"airports_by_elevation": "c b a e", // descending: strings before numbers, equal keys by id
	} {
		if got := ids(t, name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestOfDefinition checks that the interpreter agrees with the handwritten keys on the sample's definitions, and
// supports array keys.
func TestOfDefinition(t *testing.T) {
	all := maps.Clone(docs)
	all["f"] = []byte(`{"kind":"airport","tags":["x","y","x",1,1.0],"name":"é"}`)
	all["g"] = []byte(`{"tags":[]}`)
	all["h"] = []byte(`{"tags":"y","name":1e400}`)
	for statement, want := range map[string]string{
		`CREATE PRIMARY INDEX ON b`:                                                                    "a b c d e f g h",
		`CREATE INDEX i ON b(iso_country, name) WHERE kind = "airport"`:                                "e b a",
		`CREATE INDEX i ON b(elevation_ft DESC) WHERE kind = "airport" AND scheduled_service = TRUE`:   "c b a e",
		`CREATE INDEX i ON b(DISTINCT tags DESC)`:                                                      "f h f f",
		`CREATE INDEX i ON b(META().id, ALL tags)`:                                                     "a b c d e f f f g h",
		`CREATE INDEX i ON b(LENGTH(name), ALL ARRAY UPPER(v) FOR v IN tags END) WHERE ISSTRING(name)`: "f f f a d c",
		`CREATE INDEX i ON b({"z": 1, "a": kind})`:                                                     "g h a b c e f d",
		`CREATE INDEX i ON b(name + 1)`:                                                                "a c d e f",
	} {
		parsed, err := expression.Parse(statement)
		if err != nil {
			t.Fatal(err)
		}
		d := parsed[0].(*expression.CreateIndex).Definition()
		rows, err := OfDefinition(&d).Rows(all)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range rows {
			got = append(got, r.ID)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s, want %s", statement, s, want)
		}
	}
}

func TestDiffSeesEveryDifference(t *testing.T) {
	want, _ := Rows("airports_by_elevation", docs)
	raw := func(texts ...string) (keys [][]json.RawMessage) {
		for _, s := range texts {
			keys = append(keys, []json.RawMessage{json.RawMessage(s)})
		}
		return keys
	}
	good := []string{"c", "b", "a", "e"}
	if d := Diff(want, raw(`"low"`, "291.5", "291", "2.91e2"), good); d != "" {
		t.Errorf("equal rows differ: %s", d)
	}
	for name, d := range map[string]string{
		"missing": Diff(want, raw(`"low"`, "291.5", "291"), good[:3]),
		"extra":   Diff(want, raw(`"low"`, "291.5", "291", "291", "1"), append(good[:4:4], "x")),
		"value":   Diff(want, raw(`"low"`, "291.5", "292", "291"), good),
		"order":   Diff(want, raw(`"low"`, "291.5", "291", "291"), []string{"c", "b", "e", "a"}),
	} {
		if d == "" {
			t.Errorf("%s: not seen", name)
		}
	}
}

func TestHistory(t *testing.T) {
	h := NewHistory(2)
	h.Record(0, Op{3, "x", nil})
	h.Record(0, Op{1, "x", []byte("1")})
	h.Record(1, Op{5, "y", []byte("2")})
	for _, c := range []struct {
		at   []uint64
		want int
	}{{[]uint64{0, 0}, 0}, {[]uint64{2, 4}, 1}, {[]uint64{2, 5}, 2}, {[]uint64{3, 5}, 1}} {
		if got := len(h.At(c.at)); got != c.want {
			t.Errorf("at %v: %d documents, want %d", c.at, got, c.want)
		}
	}
}
