// Cyclonus' simulation of NetworkPolicies, as a filter: a line of JSON in, a line of JSON out.
//
// In: {"policies": [NetworkPolicy, ...], "traffic": [Traffic, ...]}; out: [[ingress, egress], ...] in the same order.
// The tests compare it with Windlass' own judgement of the same packets.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	networking "k8s.io/api/networking/v1"
)

type request struct {
	Policies []*networking.NetworkPolicy `json:"policies"`
	Traffic  []*matcher.Traffic          `json:"traffic"`
}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	decoder := json.NewDecoder(in)
	for decoder.More() {
		var asked request
		if err := decoder.Decode(&asked); err != nil {
			log.Fatal(err)
		}
		policies := matcher.BuildNetworkPolicies(true, asked.Policies)
		answer := make([][2]bool, 0, len(asked.Traffic))
		for _, traffic := range asked.Traffic {
			result := policies.IsTrafficAllowed(traffic)
			answer = append(answer, [2]bool{result.Ingress.IsAllowed(), result.Egress.IsAllowed()})
		}
		if err := encoder.Encode(answer); err != nil {
			log.Fatal(err)
		}
		out.Flush()
	}
}
