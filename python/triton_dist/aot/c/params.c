/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Parameter blocks and tensor maps. */
#include <string.h>

#include "tdist_driver.h"
#include "tdist_internal.h"

enum { L2_PROMOTION_128B = 2 };

/* Rounded to the nearest, ties to even. */
static uint16_t half_of(double value) {
    float single = (float)value;
    uint32_t bits, mantissa, shift;
    memcpy(&bits, &single, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    int32_t exponent = (int32_t)(bits >> 23 & 0xff) - 127 + 15;
    mantissa = bits & 0x7fffff;
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (exponent >= 31)
        return (uint16_t)(sign | 0x7c00);
    if (exponent < -10)
        return sign;
    shift = 13;
    if (exponent <= 0) {
        mantissa |= 0x800000;
        shift = (uint32_t)(14 - exponent);
        exponent = 0;
    }
    uint32_t kept = mantissa >> shift, lost = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1);
    kept += lost > tie || (lost == tie && (kept & 1));
    return (uint16_t)(sign | (((uint32_t)exponent << 10) + kept));
}

/* The upper half of the float: Triton's launcher cuts it off as well. */
static uint16_t bfloat_of(double value) {
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return (uint16_t)(bits >> 16);
}

int tdist_encode(const tdist_variant *variant, const tdist_param *param, const tdist_tensor *tensor, void *address, void *to) {
    const tdist_map *map = &variant->maps[param->index];
    const tdist_cuda *cuda = NULL;
    uint64_t dims[TDIST_MAX_RANK], strides[TDIST_MAX_RANK];
    uint32_t box[TDIST_MAX_RANK], ones[TDIST_MAX_RANK];
    int status = tdist_get_cuda(&cuda), rank = map->rank;
    if (status != TDIST_OK)
        return status;
    if (tensor->rank != rank || tensor->strides[rank - 1] != 1 || (uintptr_t)address % 16 != 0)
        return tdist_fail(TDIST_ERR_TENSOR, "%s: parameter %d: expected %d dimensions, an innermost stride of 1 and an address that "
                          "is a multiple of 16", variant->name, param->source, rank);
    for (int d = 0; d < rank; d++) {
        int from = rank - 1 - d;
        dims[d] = (uint64_t)tensor->shape[from];
        strides[d] = from > 0 ? (uint64_t)tensor->strides[from - 1] * map->element_bytes : 0;
        box[d] = map->box[from];
        ones[d] = 1;
    }
    int code = cuda->encode(to, map->type, (unsigned)rank, address, dims, strides, box, ones, 0, map->swizzle, L2_PROMOTION_128B,
                            tensor->pad_with_nan != 0);
    if (code)
        return tdist_fail(TDIST_ERR_TENSOR, "%s: parameter %d: cuTensorMapEncodeTiled refuses it with %d: shape, strides of whole 16 "
                          "bytes and address", variant->name, param->source, code);
    return TDIST_OK;
}

static void *address_of(const tdist_value *value) {
    return value->type & TDIST_TENSOR ? value->as.tensor->data : value->as.pointer;
}

/* The bits of a parameter that is no tensor map. */
uint64_t tdist_bits_of(const tdist_param *param, const tdist_value *value) {
    uint64_t bits = 0;
    switch ((tdist_param_kind)param->kind) {
    case TDIST_PARAM_POINTER:
    case TDIST_PARAM_BASE:
        return (uint64_t)(uintptr_t)address_of(value);
    case TDIST_PARAM_HALF:
        return half_of(value->as.real);
    case TDIST_PARAM_BFLOAT:
        return bfloat_of(value->as.real);
    case TDIST_PARAM_FLOAT: {
        float single = (float)value->as.real;
        memcpy(&bits, &single, sizeof single);
        return bits;
    }
    case TDIST_PARAM_DOUBLE:
        memcpy(&bits, &value->as.real, sizeof bits);
        return bits;
    case TDIST_PARAM_SHAPE32:
    case TDIST_PARAM_SHAPE64:
        return (uint64_t)value->as.tensor->shape[param->index];
    case TDIST_PARAM_STRIDE:
        return (uint64_t)value->as.tensor->strides[param->index];
    case TDIST_PARAM_PADDING:
        return value->as.tensor->pad_with_nan != 0;
    case TDIST_PARAM_ZERO8:
    case TDIST_PARAM_SCRATCH:
    case TDIST_PARAM_PROFILE:
    case TDIST_PARAM_MAP:
        return 0;
    default:
        return (uint64_t)value->as.integer;
    }
}

int tdist_fill(const tdist_variant *variant, const tdist_value *values, tdist_block *made, tdist_map_bytes *maps) {
    for (size_t p = 0; p < variant->param_count; p++) {
        const tdist_param *param = &variant->params[p];
        const tdist_value *value = &values[param->source];
        made->params[p] = &made->cells[p];
        made->cells[p] = 0;
        if (param->kind >= TDIST_PARAM_SCRATCH)
            continue;
        if (value->type & TDIST_TENSOR && value->as.tensor == NULL)
            return tdist_fail(TDIST_ERR_ARGUMENT, "%s: parameter %d: no tensor", variant->name, param->source);
        made->cells[p] = tdist_bits_of(param, value);
        if (param->kind == TDIST_PARAM_MAP) {
            int status = tdist_encode(variant, param, value->as.tensor, value->as.tensor->data, maps[param->index].bytes);
            if (status != TDIST_OK)
                return status;
            made->params[p] = maps[param->index].bytes;
        }
    }
    return TDIST_OK;
}
