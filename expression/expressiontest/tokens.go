package expressiontest

import (
	"encoding/json"
	"regexp"
	"strings"
)

// tokens is TOKENS, by patterns.
func tokens(_ *interpreter, a []any) any {
	options := map[string]any{}
	if len(a) == 2 {
		options = a[1].(map[string]any)
	}
	words := func(text string) (list []any) {
		found := regexp.MustCompile(`[\pL\pN]+`).FindAllString(text, -1)
		if options["specials"] == true {
			found = nil
			for _, field := range strings.Fields(text) {
				found = append(found, regexp.MustCompile(`[\pL\pN](.*[\pL\pN])?`).FindString(field))
			}
		}
		for _, w := range found {
			switch {
			case w == "":
				continue
			case options["case"] == "lower":
				w = strings.ToLower(w)
			case options["case"] == "upper":
				w = strings.ToUpper(w)
			}
			list = append(list, w)
		}
		return list
	}
	var all func(v any) []any
	all = func(v any) (list []any) {
		switch v := v.(type) {
		case string:
			return words(v)
		case bool, json.Number:
			return []any{v}
		case []any:
			for _, e := range v {
				list = append(list, all(e)...)
			}
		case map[string]any:
			for name, e := range v {
				if options["names"] == true {
					list = append(list, words(name)...)
				}
				list = append(list, all(e)...)
			}
		}
		return list
	}
	return distinct(all(a[0]))
}
