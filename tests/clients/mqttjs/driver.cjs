// MQTT.js on a string: a line of JSON on standard input is a call, lines on standard output are answers and events.
//
//   {"number": 1, "client": "a", "method": "connect", "arguments": [url, options]}    mqtt.connect(url, options)
//   {"number": 2, "client": "a", "method": "publishAsync", "arguments": [...]}        a.publishAsync(...)
//   {"number": 3, "client": "a", "method": "break"}                                   its socket is destroyed
//   {"number": 4, "client": "", "method": "forget"}                                   all are gone, without a word
//   {"number": 2, "value": ...}  {"number": 2, "error": {"message": ..., "code": ...}}
//   {"client": "a", "event": "message", "arguments": [...]}
//
// Bytes are {"type": "Buffer", "data": [...]}, as Node's own JSON writes them.
"use strict";

const mqtt = require("mqtt");
const readline = require("node:readline");

const EVENTS = ["connect", "message", "packetsend", "packetreceive", "disconnect", "close", "offline", "reconnect", "error", "end"];
const clients = new Map();

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const described = (error) => ({ message: String(error.message ?? error), code: error.code ?? null });
const revived = (_key, value) => (value?.type === "Buffer" ? Buffer.from(value.data) : value);

function connect(name, url, options) {
    const client = mqtt.connect(url, options);
    clients.set(name, client);
    for (const event of EVENTS) {
        client.on(event, (...given) =>
            say({ client: name, event, arguments: given.map((each) => (each instanceof Error ? described(each) : each)) }),
        );
    }
}

function forget() {
    for (const client of clients.values()) {
        client.removeAllListeners();
        client.on("error", () => {});
        client.end(true);
    }
    clients.clear();
}

async function perform({ client: name, method, arguments: given = [] }) {
    if (method === "connect") return connect(name, ...given);
    if (method === "forget") return forget();
    if (method === "break") return void clients.get(name).stream.destroy();
    const client = clients.get(name);
    const value = await client[method](...given);
    return value === client ? undefined : value;
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
    const call = JSON.parse(line, revived);
    perform(call).then(
        (value) => say({ number: call.number, value }),
        (error) => say({ number: call.number, error: described(error) }),
    );
}).on("close", () => process.exit(0));
