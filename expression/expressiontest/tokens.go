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
		var ok bool
		if options, ok = a[1].(map[string]any); !ok {
			return nil
		}
	}
	change := func(word string) any {
		mode, _ := options["case"].(string)
		switch strings.ToLower(mode) {
		case "lower":
			return strings.ToLower(word)
		case "upper":
			return strings.ToUpper(word)
		}
		return word
	}
	words := func(text string) (list []any) {
		if options["split"] == false {
			if options["trim"] != false {
				text = strings.TrimSpace(text)
			}
			if text == "" {
				return nil
			}
			return []any{change(text)}
		}
		found := regexp.MustCompile(`[\pL\pN]+`).FindAllString(text, -1)
		if options["specials"] == true {
			for _, field := range strings.Fields(regexp.MustCompile(`[\[\](){}]`).ReplaceAllString(text, " ")) {
				if word := regexp.MustCompile(`.*[\pL\pN]`).FindString(field); word != "" {
					found = append(found, word)
				}
			}
		}
		for _, w := range found {
			list = append(list, change(w))
		}
		return list
	}
	var all func(v any) []any
	all = func(v any) (list []any) {
		switch v := v.(type) {
		case string:
			return words(v)
		case nil, bool, json.Number:
			return []any{v}
		case []any:
			for _, e := range v {
				list = append(list, all(e)...)
			}
		case map[string]any:
			for name, e := range v {
				if options["names"] != false {
					list = append(list, words(name)...)
				}
				list = append(list, all(e)...)
			}
		}
		return list
	}
	return distinct(all(a[0]))
}
