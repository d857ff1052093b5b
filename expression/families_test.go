package expression_test

import (
	"errors"
	"slices"
	"testing"

	"tidemark/expression"
	"tidemark/internal/testing/families"
	"tidemark/partition"
)

// A partitioning scheme that is added in a file of its own is parsed, printed and laid out like the built-in ones.
func TestRegisteredPartitionScheme(t *testing.T) {
	const text = `CREATE INDEX i ON b(a) PARTITION BY FAMILY(META().id) WITH {"num_partition": 3}`
	parsed, err := expression.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	d := parsed[0].(*expression.CreateIndex).Definition()
	if d.PartitionBy.Scheme != families.By || !slices.Equal(d.PartitionBy.Exprs, []string{"META().id"}) ||
		len(d.Keys) != 1 {
		t.Fatalf("%+v", d)
	}
	again := d
	if err := expression.Normalize(&again); err != nil || again.Statement != d.Statement ||
		!again.PartitionBy.Equal(&d.PartitionBy) {
		t.Fatalf("%q becomes %q: %v", d.Statement, again.Statement, err)
	}
	l, err := partition.LayoutOf(&d)
	if err != nil || l.Scheme != families.Scheme || l.Partitions != 3 {
		t.Fatalf("%+v %v", l, err)
	}
	for _, wrong := range []string{`CREATE INDEX i ON b(a) PARTITION BY FAMILY(META().id) VALUES (1)`,
		`CREATE INDEX i ON b(a) PARTITION BY CLAN(META().id)`, "CREATE INDEX i ON b(a) PARTITION BY `family`(META().id)"} {
		if _, err := expression.Parse(wrong); !errors.Is(err, expression.ErrSyntax) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	if d.PartitionBy.Exprs = []string{"a"}; true {
		if _, err := partition.LayoutOf(&d); !errors.Is(err, partition.ErrDefinition) {
			t.Errorf("families of a key: %v", err)
		}
	}
}
