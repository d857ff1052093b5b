// Package deploy_test checks that the files in this folder match the program.
package deploy_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"tidemark/internal/testing/testcluster"
)

// documented returns the metric names of docs/metrics.md; tests of each role check that the role exports them.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range regexp.MustCompile("`(tidemark_[a-z_]+)[`{]").FindAllSubmatch(text, -1) {
		names[string(m[1])] = true
	}
	if len(names) < 100 {
		t.Fatalf("only %d metrics are documented", len(names))
	}
	return names
}

var metric = regexp.MustCompile(`\btidemark_[a-z_]+`)

// check reports metrics of an expression that no role exports.
func check(t *testing.T, where, expr string, names map[string]bool) {
	t.Helper()
	found := metric.FindAllString(expr, -1)
	if len(found) == 0 && !strings.HasPrefix(expr, "up{") {
		t.Errorf("%s: no metric of ours in %s", where, expr)
	}
	for _, name := range found {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if !names[name] && !names[base] {
			t.Errorf("%s: no role shows %s", where, name)
		}
	}
}

// TestRules checks that alerts use existing metrics and have advice, and that the pages that they mention exist.
func TestRules(t *testing.T) {
	text, err := os.ReadFile("prometheus/tidemark.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	names, seen := documented(t), map[string]bool{}
	operations, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || seen[r.Alert] {
				t.Errorf("alert %q has no name of its own", r.Alert)
			}
			seen[r.Alert] = true
			check(t, r.Alert, r.Expr, names)
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s does not say what is wrong and what to do", r.Alert)
			}
			if _, at, ok := strings.Cut(r.Annotations["description"], "docs/operations.md, "); ok &&
				!strings.Contains(string(operations), "\n## "+strings.TrimSuffix(at, ".")+"\n") &&
				!strings.Contains(string(operations), "\n## "+strings.TrimRight(at, ".)")+"\n") {
				t.Errorf("%s: docs/operations.md has no section %q", r.Alert, at)
			}
		}
	}
	if len(seen) < 15 {
		t.Errorf("only %d alerts", len(seen))
	}
}

// TestRulesFire runs the rules' own tests.
func TestRulesFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool, of Prometheus")
	}
	for _, args := range [][]string{{"check", "rules", "tidemark.rules.yml"}, {"check", "config", "prometheus.yml"},
		{"test", "rules", "tidemark.rules.test.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestDashboard checks that each panel uses existing metrics.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("grafana/tidemark.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	names := documented(t)
	for _, p := range d.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			check(t, p.Title, target.Expr, names)
		}
	}
}

// TestUnits checks that systemd accepts the units, as far as it can without the program and its user.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze")
	}
	for _, unit := range []string{"tidemark-node.service", "tidemark@.service"} {
		text, err := os.ReadFile("systemd/" + unit)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), unit)
		text = []byte(strings.ReplaceAll(string(text), "/usr/local/bin/tidemark", testcluster.Binary(t)))
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), analyze, "verify", path).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
	}
}

// TestConfig checks that the program accepts the example for each role, and that the unit starts roles with it.
func TestConfig(t *testing.T) {
	bin := testcluster.Binary(t)
	unit, err := os.ReadFile("systemd/tidemark@.service")
	if err != nil {
		t.Fatal(err)
	}
	_, start, _ := strings.Cut(string(unit), "\nExecStart=/usr/local/bin/tidemark %i ")
	start, _, _ = strings.Cut(start, "\n")
	if start != "--config /etc/tidemark/tidemark.yaml" {
		t.Fatalf("the unit starts it with %q", start)
	}
	node, err := os.ReadFile("systemd/tidemark-node.service")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(node), "\nExecStart=/usr/local/bin/tidemark node --config /etc/tidemark/tidemark.yaml\n") {
		t.Error("the unit of a node starts something else")
	}
	out, err := exec.CommandContext(t.Context(), bin, "config", "show", "node", "--config", "config/node.yaml").
		CombinedOutput()
	if err != nil || !strings.Contains(string(out), "n1=10.0.0.1,n2=10.0.0.2,n3=10.0.0.3") {
		t.Errorf("node: %v\n%s", err, out)
	}
	for role, want := range map[string]string{"manager": "10.0.0.1:9520,10.0.0.2:9520,10.0.0.3:9520",
		"projector": "/etc/tidemark/projector.pem", "indexer": "10.0.0.5:9541"} {
		values := takes(t, role+".yaml", []string{role, "--config", "config/" + role + ".yaml"}, nil)
		if !slices.Contains(slices.Collect(maps.Values(values)), want) {
			t.Errorf("%s.yaml says nothing of %s", role, want)
		}
	}
	for role, want := range map[string]string{"manager": "/var/lib/tidemark/manager", "projector": "kv-password-file",
		"indexer": "/var/lib/tidemark/indexer"} {
		out, err := exec.CommandContext(t.Context(), bin, "config", "show", role, "--config",
			"config/tidemark.yaml").CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%s", role, err, out)
		}
	}
}
