package main

import (
	"os"
	"strings"
	"testing"
)

// TestPage checks that docs/campaigns.md has the command of every campaign.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/campaigns.md")
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.ReplaceAll(string(page), `\|`, "|")
	for _, c := range campaigns {
		if !strings.Contains(plain, "| "+c.name+" |") || !strings.Contains(plain, "`"+c.test+"`") {
			t.Errorf("docs/campaigns.md lacks %s, or its command `%s`", c.name, c.test)
		}
	}
}

func TestChoose(t *testing.T) {
	all, err := choose([]string{"all"})
	if err != nil || len(all) < 10 {
		t.Errorf("%d campaigns, %v", len(all), err)
	}
	for _, c := range all {
		if c.needs != "" {
			t.Errorf("%s needs %s", c.name, c.needs)
		}
	}
	if some, err := choose([]string{"engine", "truth"}); err != nil || len(some) != 2 || some[0].name != "engine" {
		t.Errorf("%v, %v", some, err)
	}
	if _, err := choose([]string{"wat"}); err == nil {
		t.Error("a campaign that is not was chosen")
	}
}
