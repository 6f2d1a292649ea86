"""What a record file holds (shared/base/record_file.h), read by other code than the product's."""
import struct


def newest_record(path):
    """The newest record of a file that the product has written and is whole."""
    with open(path, "rb") as file:
        whole = file.read()
    half = len(whole) // 2
    found = []
    for begin in 0, half:
        magic, number, length = struct.unpack_from("<8sQQ", whole, begin)
        if magic == b"WSRECORD":
            found.append((number, whole[begin + 40:begin + 40 + length]))
    return max(found)[1]
