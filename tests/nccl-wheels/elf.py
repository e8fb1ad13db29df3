"""Symbols of a 64-bit ELF file, including local ones."""

import mmap
import struct

SYMTAB = 2


def symbols(path, wanted):
    """{name: value} of each defined symbol whose full name matches the compiled bytes pattern `wanted`."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is no 64-bit little-endian ELF file")
        (at,) = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        # type, offset, size, link of each section
        sections = [struct.unpack_from("<4xI16xQQI", data, at + size * index) for index in range(count)]
        found = {}
        for kind, offset, length, link in sections:
            if kind != SYMTAB:
                continue
            _, names, names_length, _ = sections[link]
            strings = data[names : names + names_length]
            for name, section, value in struct.iter_unpack("<I2xHQ8x", data[offset : offset + length]):
                if section and wanted.fullmatch(text := strings[name : strings.index(b"\0", name)]):
                    found.setdefault(text.decode(), value)
        return found
