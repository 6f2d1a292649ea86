"""Changes the memory of engines behind their backs, as a bit does that flips."""
import errno
import json
import os
import struct

LARGEST = 1 << 30  # of a mapping that is looked into; sanitizers have some of terabytes


def bytes_of_tensor(checkpoint, name):
    """The bytes of one tensor, from the safetensors file that the index names."""
    with open(os.path.join(checkpoint, "model.safetensors.index.json"), encoding="utf-8") as file:
        shard = json.load(file)["weight_map"][name]
    with open(os.path.join(checkpoint, shard), "rb") as file:
        header_bytes, = struct.unpack("<Q", file.read(8))
        begin, end = json.loads(file.read(header_bytes))[name]["data_offsets"]
        file.seek(8 + header_bytes + begin)
        return file.read(end - begin)


def flip_bit(pid, wanted):
    """Flips one bit in the middle of `wanted`, found in the private memory of a process; the number of places."""
    places = []
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            span, rights, _, _, inode = line.split()[:5]
            begin, end = (int(address, 16) for address in span.split("-"))
            if rights != "rw-p" or inode != "0" or end - begin > LARGEST:
                continue
            memory.seek(begin)
            try:
                held = memory.read(end - begin)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                continue  # the process has unmapped it meanwhile
            at = held.find(wanted)
            while at >= 0:
                places.append(begin + at + len(wanted) // 2)
                at = held.find(wanted, at + 1)
        for address in places:
            memory.seek(address)
            byte, = memory.read(1)
            memory.seek(address)
            memory.write(bytes([byte ^ 1]))
    return len(places)
