package collate_test

import (
	"testing"

	"tidemark/collate"
)

// BenchmarkComposite encodes a key of three components, once from JSON texts and once from plain values.
func BenchmarkComposite(b *testing.B) {
	city, age, email := []byte(`"San Francisco"`), []byte("34"), []byte(`"Alexandra.Fitzgerald@example.com"`)
	dst := make([]byte, 0, 1024)
	b.Run("json", func(b *testing.B) {
		components := [][]byte{city, age, email}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := collate.AppendComposite(dst, components, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("values", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			key := collate.AppendString(dst, city[1:len(city)-1])
			key = collate.AppendInt64(key, 34)
			dst = collate.AppendString(key, email[1:len(email)-1])[:0]
		}
	})
	b.Run("decode", func(b *testing.B) {
		key, err := collate.AppendComposite(nil, [][]byte{city, age, email}, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := collate.DecodeComposite(dst, key, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkJSON encodes single values.
func BenchmarkJSON(b *testing.B) {
	for _, c := range []struct{ name, text string }{
		{"int", "34"}, {"int64", "9223372036854775807"}, {"float", "1532.75"}, {"digits30", "123456789012345678901234567890"},
		{"string20", `"Alexandra Fitzgerald"`},
		{"object", `{"street":"1024 Elm Street","city":"San Francisco","geo":{"lat":37.7599,"lon":-122.4383},"zip":94114}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			dst, text := make([]byte, 0, 1024), []byte(c.text)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := collate.AppendJSON(dst, text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
