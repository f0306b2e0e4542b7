package demo

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
)

// figure is a number that was measured, or was not: nil is null in JSON, and a dash in the report. It is never a 0 in the stead of one.
type figure = *float64

// found is a figure of so many digits behind the point; none where there is no such number, as after a division by zero.
func found(x float64, digits int) figure {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	x = round(x, digits)
	return &x
}

// among is a figure that was measured with so many samples, none with 0.
func among[N int64 | uint64](samples N, d time.Duration) figure {
	if samples == 0 {
		return nil
	}
	return found(float64(d)/float64(time.Microsecond), 1)
}

// show is a figure with so many digits behind the point.
func show(f figure, digits int) string {
	if f == nil {
		return "-"
	}
	return strconv.FormatFloat(*f, 'f', digits, 64)
}

// quotient is a/b.
func quotient(a, b figure) figure {
	if a == nil || b == nil {
		return nil
	}
	return found(*a / *b, 2)
}

// round keeps so many digits behind the point.
func round(x float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(x*p) / p
}

// document is the result as JSON.
func document(r *result) ([]byte, error) {
	b, err := json.MarshalIndent(r, "", "  ")
	return append(b, '\n'), err
}
