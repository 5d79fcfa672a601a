"""
Figures from the text outputs of qualification tools: text in, numbers out, nothing asked of the machine.
"""
