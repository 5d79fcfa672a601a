"""
Calculators: sizes, times and fits of training and serving by published formulas. Pure: numbers in, numbers with their reasons out.
"""
