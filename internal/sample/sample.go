// Package sample holds the sample data: 9,359 documents (countries, regions and airports of the world, from the public
// domain OurAirports tables) and the indexes that `tidemark up --sample` creates on them.
package sample

import (
	"bytes"
	_ "embed" // the data
	"fmt"
	"strings"

	"tidemark/internal/documents"
)

//go:embed world.jsonl.gz
var world []byte

// Documents is the number of documents in the sample.
const Documents = 9359

// Statements create the sample indexes on a bucket, in order.
func Statements(bucket string) []string {
	on := " ON `" + bucket + "`"
	return []string{
		"CREATE PRIMARY INDEX world_ids" + on,
		"CREATE INDEX airports_by_country" + on + `(iso_country, name) WHERE kind = "airport"`,
		"CREATE INDEX places_by_name" + on + "(name)",
		"CREATE INDEX airports_by_elevation" + on + `(elevation_ft DESC) WHERE kind = "airport" AND scheduled_service = true`,
	}
}

// IndexName returns the name of the index that one of the Statements creates.
func IndexName(statement string) string {
	_, after, _ := strings.Cut(statement, "INDEX ")
	name, _, _ := strings.Cut(after, " ")
	return name
}

// Open returns a reader of the embedded sample.
func Open() (*documents.Reader, error) {
	r, err := documents.New(bytes.NewReader(world), documents.Options{Format: documents.Lines})
	if err != nil {
		return nil, fmt.Errorf("embedded sample data: %w", err)
	}
	return r, nil
}
