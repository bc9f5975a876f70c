// Requests as programs in Go make them, by net/http.
//
// Arguments: seconds after which a request is given up, and the requests, each as REFUSAL=URL. A line for each.
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

func ask(client *http.Client, url, host string) string {
	request, err := http.NewRequest("GET", url, nil)
	if err != nil {
		return err.Error()
	}
	request.Host = host
	answer, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("answer %s %s", answer.Status, text)
}

func main() {
	patience, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	for _, argument := range os.Args[2:] {
		refusal, url, _ := strings.Cut(argument, "=")
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		client := &http.Client{Transport: transport, Timeout: time.Duration(patience) * time.Second}
		words := ask(client, url, "")
		if refusal == "later" {
			// A second request on the same connection has another host.
			words = ask(client, url, "evil.example")
		}
		fmt.Printf("Go\t%s\t%s\n", refusal, strings.Join(strings.Fields(words), " "))
	}
}
