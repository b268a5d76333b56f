/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Sections and symbols of a binary for a GPU. */
#include <elf.h>
#include <string.h>

static const Elf64_Shdr *section(const unsigned char *image, const char *name) {
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + head->e_shoff);
    const char *names = (const char *)image + sections[head->e_shstrndx].sh_offset;
    for (int i = 0; i < head->e_shnum; i++)
        if (strcmp(names + sections[i].sh_name, name) == 0)
            return &sections[i];
    return NULL;
}

static const Elf64_Sym *symbol(const unsigned char *image, const char *symbols, const char *names, const char *name) {
    const Elf64_Shdr *table = section(image, symbols), *strings = section(image, names);
    if (table == NULL || strings == NULL)
        return NULL;
    const Elf64_Sym *found = (const Elf64_Sym *)(image + table->sh_offset);
    for (size_t i = 0; i < table->sh_size / sizeof *found; i++)
        if (strcmp((const char *)image + strings->sh_offset + found[i].st_name, name) == 0)
            return &found[i];
    return NULL;
}
