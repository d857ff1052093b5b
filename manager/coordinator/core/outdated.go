package core

import (
	"fmt"
	"strings"

	"tidemark/expression"
	"tidemark/index"
)

// Outdated returns the consequences for an index whose entries were made by other expression rules than the
// projectors' present ones; "" if its expressions give the same values under both. An outdated index contains keys of
// both kinds.
func (r ExprRules) Outdated(d *index.Definition) string {
	now := r.Highest
	if r.Lowest < d.Rules && r.Highest <= d.Rules { // an earlier version is running again
		now = r.Lowest
	}
	if now == 0 || d.State == index.Dropping || d.Deferred {
		return ""
	}
	var names []string
	for _, c := range expression.Changed(d, int(d.Rules), int(now)) {
		names = append(names, c.Name)
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("built with expression rules %d, projectors use %d, and results of %s differ: keys of "+
		"documents written since may differ; create the index again, then drop this one (docs/expressions.md, Rules)",
		d.Rules, now, strings.Join(names, ", "))
}
