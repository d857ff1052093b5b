package liveness

import "testing"

func TestJudge(t *testing.T) {
	limits := Limits{SuspectMS: 1500, OfflineMS: 5000}
	for name, tc := range map[string]struct {
		signs Signs
		want  Life
	}{
		"just reported":                             {Signs{AgeMS: 0, Contacted: true}, Active},
		"one report missed":                         {Signs{AgeMS: 1499, Contacted: true}, Active},
		"silent for a while":                        {Signs{AgeMS: 1500, Contacted: true}, Suspect},
		"silent for long":                           {Signs{AgeMS: 5000, Contacted: true}, Offline},
		"a new term, its hello is still on its way": {Signs{AgeMS: 60000}, Suspect},
		"its process has ended":                     {Signs{AgeMS: 0, Contacted: true, Refused: true}, Offline},
		"ended before it reported in this term":     {Signs{AgeMS: 0, Refused: true}, Offline},
	} {
		if got := limits.Judge(tc.signs); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestRetry(t *testing.T) {
	var r Retry
	if !r.Ready(0) {
		t.Fatal("the first attempt has to wait")
	}
	now := int64(0)
	for n, wait := range []int64{50, 100, 200, 400, 800, 1000, 1000} {
		r.Begin()
		if r.Ready(now + 1e6) {
			t.Fatal("two attempts at once")
		}
		r.Failed(now)
		if r.Tries != n+1 || r.Ready(now+wait-1) || !r.Ready(now+wait) {
			t.Errorf("after failure %d the next one does not wait %d ms", n+1, wait)
		}
		now += wait
	}
	r.Begin()
	r.Succeeded(now + 7)
	if r.Tries != 0 || r.Ready(now+6) || !r.Ready(now+7) {
		t.Errorf("after a success: %+v", r)
	}
}
