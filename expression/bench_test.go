package expression_test

import (
	"encoding/json"
	"syscall"
	"testing"

	"tidemark/expression"
	"tidemark/index"
)

// kibibyte returns a document of about 1 KiB.
const kibibyte = `{"id":"user::00012345","type":"user","created":"2024-03-11T09:21:44Z","updated":1718097704123,"name":"Alexandra Fitzgerald","email":"Alexandra.Fitzgerald@Example.COM","phone":"+1-202-555-0147","age":34,"status":"active","verified":true,"referrer":null,"bio":"Senior engineer who likes \"distributed\" systems, long walks & espresso. Moved from Lyon to Berlin in 2019 and has been restoring old radios since then.","address":{"street":"1024 Elm Street","line2":"Apt 7","city":"San Francisco","state":"CA","zip":"94114","geo":{"lat":37.7599,"lon":-122.4383}},"account":{"plan":"pro","balance":1532.75,"currency":"USD","limits":{"daily":5000,"monthly":100000}},"friends":[{"id":"user::00000017","name":"Ben"},{"id":"user::00004711","name":"Chloe"},{"id":"user::00009999","name":"Dmitri"}],"logins":[1718097704,1718011304,1717924904,1717838504],"prefs":{"theme":"dark","lang":"en-US","notify":{"email":true,"sms":false,"push":true}},"tags":["go","databases","radio","coffee","berlin"],"schema":3}`

func keys(texts ...string) expression.Source {
	var s expression.Source
	for _, t := range texts {
		s.Keys = append(s.Keys, index.KeyExpr{Expr: t})
	}
	return s
}

func where(s expression.Source, predicate string) expression.Source {
	s.Where = predicate
	return s
}

// cpuTime reports the CPU time per operation in addition to the wall time, which is not reliable on a busy machine.
func cpuTime(b *testing.B) (stop func()) {
	used := func() int64 {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return r.Utime.Nano() + r.Stime.Nano()
	}
	start := used()
	return func() { b.ReportMetric(float64(used()-start)/float64(b.N), "cpu-ns/op") }
}

func benchmark(b *testing.B, sources ...expression.Source) { benchmarkKeys(b, 1, sources...) }

func benchmarkArray(b *testing.B, source expression.Source) {
	b.Helper()
	benchmarkKeys(b, 0, source)
}

// benchmarkKeys requires so many keys of the first index; 0 means any number.
func benchmarkKeys(b *testing.B, want int, sources ...expression.Source) {
	b.Helper()
	p, err := expression.Compile(sources)
	if err != nil {
		b.Fatal(err)
	}
	var s expression.Scratch
	id, doc := []byte("user::00012345"), []byte(kibibyte)
	p.Evaluate(&s, id, doc)
	defer cpuTime(b)()
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		if r := p.Evaluate(&s, id, doc); r.NotJSON || r.Errors > 0 || len(r.Keys(0)) == 0 || want > 0 &&
			len(r.Keys(0)) != want {
			b.Fatal(r)
		}
	}
}

// BenchmarkEvaluate turns a document of 1 KiB into the keys of some indexes; validation by encoding/json alone is
// included for comparison.
func BenchmarkEvaluate(b *testing.B) {
	five := []expression.Source{keys("name"), keys("address.city"), keys("age"), keys("email"),
		keys("account.balance", "name")}
	b.Run("paths-1", func(b *testing.B) { benchmark(b, five[0]) })
	b.Run("paths-5", func(b *testing.B) { benchmark(b, five...) })
	b.Run("where-5", func(b *testing.B) {
		var all []expression.Source
		for _, s := range five {
			all = append(all, where(s, `status = "active" AND age >= 21`))
		}
		benchmark(b, all...)
	})
	b.Run("mixed-5", func(b *testing.B) {
		benchmark(b, expression.Source{IsPrimary: true}, keys("name"), where(keys("friends[0].name", "tags[-1]"),
			"verified = true"),
			where(keys("age", "address.geo.lat"), `NOT (age < 21 OR referrer IS MISSING)`), keys("updated", "META().id"))
	})
	b.Run("functions-5", func(b *testing.B) {
		benchmark(b, keys("LOWER(email)"), keys("DATE_PART_STR(created, \"year\")", "ROUND(account.balance, 1)"),
			keys("SUBSTR(name, 0, 4) || address.zip"),
			where(keys("ARRAY_LENGTH(friends)"), `ANY f IN friends SATISFIES f.name LIKE "C%" END`), keys("CASE WHEN age >= 30 THEN UPPER(status) ELSE type END"))
	})
	b.Run("array-key", func(b *testing.B) { benchmarkArray(b, keys("DISTINCT tags", "age")) })
	b.Run("array-key-of", func(b *testing.B) { benchmarkArray(b, keys("ALL friends[*].name")) })
	b.Run("encoding-json-valid", func(b *testing.B) {
		doc := []byte(kibibyte)
		defer cpuTime(b)()
		b.SetBytes(int64(len(doc)))
		for b.Loop() {
			if !json.Valid(doc) {
				b.Fatal()
			}
		}
	})
}
